"""What a run tells about itself while it runs, and how that travels from rank 0 to whoever shows it.

No torch here: the process that starts the ranks imports this and must start quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Event", "ForwardingReporter", "Reporter", "SilentReporter", "deliver"]

Event = tuple[str, tuple[Any, ...], dict[str, Any]]  # method of Reporter, its arguments


class Reporter(Protocol):
    """Told by rank 0 alone, in this order: phases and notes, start, steps, finish."""

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the start-up just ended; phases follow each other and do not overlap."""

    def note(self, text: str) -> None:
        """A fact to show before the first step: rows, dropped records, parameters."""

    def start(self, *, max_steps: int, first_step: int) -> None:
        """The first step (from 1; higher after a resume) begins now; the last will be ``max_steps``."""

    def step(self, metrics: Mapping[str, object]) -> None:
        """A step ended: its row of the metrics file."""

    def finish(self, summary: Mapping[str, object]) -> None:
        """The run is complete. ``summary``: ``rankloom.train.display.SUMMARY_KEYS`` and any others."""


class SilentReporter:
    """For the ranks that do not report."""

    def phase(self, name: str, seconds: float) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """Nothing is shown."""

    def start(self, *, max_steps: int, first_step: int) -> None:
        """Nothing is shown."""

    def step(self, metrics: Mapping[str, object]) -> None:
        """Nothing is shown."""

    def finish(self, summary: Mapping[str, object]) -> None:
        """Nothing is shown."""


class ForwardingReporter:
    """Sends every call as an event, for ``deliver`` on the other side of a pipe."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send

    def phase(self, name: str, seconds: float) -> None:
        self._send(("phase", (name, seconds), {}))

    def note(self, text: str) -> None:
        self._send(("note", (text,), {}))

    def start(self, *, max_steps: int, first_step: int) -> None:
        self._send(("start", (), {"max_steps": max_steps, "first_step": first_step}))

    def step(self, metrics: Mapping[str, object]) -> None:
        self._send(("step", (dict(metrics),), {}))

    def finish(self, summary: Mapping[str, object]) -> None:
        self._send(("finish", (dict(summary),), {}))


def deliver(event: Event, reporter: Reporter) -> None:
    """Make the call that a ForwardingReporter was told to make."""
    method, args, kwargs = event
    getattr(reporter, method)(*args, **kwargs)
