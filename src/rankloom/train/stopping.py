"""Ending a run early and well: after its step, with a checkpoint, because somebody asked or time is up.

The rank that is asked wishes it, and all ranks learn of it in the same step, so that none goes on alone.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Self

from rankloom.config import ResolvedConfig
from rankloom.config.values import next_time, seconds_of
from rankloom.errors import UserError

__all__ = ["STOP_SIGNALS", "Deadline", "StopFile", "StopSignals", "Stopping"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what schedulers send before they end a job


@dataclass(frozen=True)
class Deadline:
    """``at``: seconds since 1970; ``key``: the setting it comes from, with its value."""

    at: float
    key: str

    @classmethod
    def of(cls, resolved: ResolvedConfig, *, started: float) -> Deadline | None:
        """The first of those that are set, for a run that was started at ``started``. Raises UserError for a
        moment that has passed: each start would train one step."""
        section, found = resolved.checkpoint, []
        if section.time_limit is not None:
            at = started + seconds_of(section.time_limit)
            found.append(cls(at, f"checkpoint.time_limit {section.time_limit}"))
        if section.save_before is not None:
            now = datetime.fromtimestamp(started)  # of no zone: clocks may change before the moment comes
            at = next_time(section.save_before, now=now).timestamp()
            if at <= started:
                raise UserError(
                    f"checkpoint.save_before {section.save_before} has passed: it is {now:%Y-%m-%dT%H:%M}; "
                    f"set a later one, or a time of day ({resolved.where('checkpoint.save_before')})"
                )
            found.append(cls(at, f"checkpoint.save_before {section.save_before}"))
        return min(found, key=lambda deadline: deadline.at, default=None)


class StopFile:
    """How the process that starts the ranks asks them to stop: a file that says why."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_run(cls, resolved: ResolvedConfig) -> Self:
        """In the run's own folder, which ranks on all nodes see."""
        return cls(Path(resolved.checkpoint.dir) / ".stop")

    def ask(self, reason: str) -> None:
        partial = self._path.with_suffix(".tmp")
        partial.write_text(reason)
        partial.rename(self._path)

    def asked(self) -> str:
        """Why, or ""."""
        return self._path.read_text() if self._path.exists() else ""

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class StopSignals:
    """How a rank that a scheduler or torchrun sends its signals to is asked."""

    def __init__(self) -> None:
        self._reason = ""
        self._armed = False

    def arm(self) -> None:
        """From now on a signal asks; the second one ends this process. In the main thread alone."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        self._armed = True

    def ask(self, reason: str) -> bool:
        """What a signal does, from any thread. Returns False where nobody looks yet."""
        if self._armed:
            self._reason = self._reason or reason
        return self._armed

    def asked(self) -> str:
        return self._reason

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._reason = signal.Signals(number).name
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)


def _never() -> str:
    return ""


@dataclass(frozen=True)
class Stopping:
    """What a rank looks at in every step.

    Attributes:
        asked: why somebody asked the run to end, or "".
        deadline: when it has to have ended.
        arm: what is to be done once steps begin; before, a signal ends the process as ever.
    """

    asked: Callable[[], str] = _never
    deadline: Deadline | None = None
    arm: Callable[[], None] | None = None

    def begin(self) -> None:
        """To be called when steps begin."""
        if self.arm is not None:
            self.arm()

    def reason(self, *, need_s: float) -> str:
        """Why the run is to end after this step, near its end, or "". ``need_s``: seconds that another step
        and a checkpoint take."""
        if told := self.asked():
            return told
        if self.deadline is not None and time.time() + need_s >= self.deadline.at:
            return self.deadline.key
        return ""
