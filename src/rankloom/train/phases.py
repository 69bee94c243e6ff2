"""How long the parts of a start-up take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rankloom.comm import Activity
from rankloom.train.reporting import Reporter

__all__ = ["Phases"]


class Phases:
    """Times the parts of the start-up of one rank, and tells the watchdog which one it is in."""

    def __init__(self, reporter: Reporter, activity: Activity) -> None:
        self._reporter = reporter
        self._activity = activity

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._activity.phase = f"start-up: {name}"
        since = time.monotonic()
        yield
        self._reporter.phase(name, time.monotonic() - since)
