"""The exceptions of rankloom. Their text is the whole message for the user; no traceback is needed to act on
it."""

from __future__ import annotations

import re

__all__ = ["RankloomError", "RunError", "UserError", "printable"]

# What moves a cursor, changes a terminal, turns the direction of writing, or cannot be written at all.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters as Python escapes them; lines and tabs stay.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class RankloomError(Exception):
    """Base of all errors meant for the user; ``exit_code`` is what the command line ends with."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(RankloomError):
    """Bad settings, bad data or missing files: says what, where, why and the nearest thing that works."""

    exit_code = 2


class RunError(RankloomError):
    """A run that had started and failed: says which rank, where in the layout, and what it was doing."""
