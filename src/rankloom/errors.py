"""The exceptions of rankloom. Their text is the whole message for the user; no traceback is needed to act on
it."""

from __future__ import annotations

__all__ = ["RankloomError", "RunError", "UserError"]


class RankloomError(Exception):
    """Base of all errors meant for the user; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UserError(RankloomError):
    """Bad settings, bad data or missing files: says what, where, why and the nearest thing that works."""

    exit_code = 2


class RunError(RankloomError):
    """A run that had started and failed: says which rank, where in the layout, and what it was doing."""
