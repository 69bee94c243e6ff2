"""Which rank failed first, why, and how to say it: records that ranks leave, exits that the launcher sees.

When one rank dies, the others soon fail too ("Connection closed by peer"), sometimes before the launcher
hears of the first. So a rank's own error outranks errors that only tell of another rank's end. No torch here.
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rankloom.errors import RankloomError, RunError, UserError
from rankloom.layout import GTPParallelLayout

__all__ = ["FailureKind", "FailureRecord", "RankExit", "first_cause", "to_error"]

_TOLD_OF_ANOTHER_RANK = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out waiting",
    "Socket Timeout",
    "NCCL communicator was aborted",
    "remote process exited",
)
_NUM_LAST_LINES = 15


class FailureKind(StrEnum):
    USER = "user"  # something the user must change; its message is whole
    RUN = "run"  # a RankloomError or a watchdog's report: its message is whole too
    OWN = "own"  # any other exception of this rank
    FOLLOW_UP = "follow_up"  # an exception that tells of another rank's end


@dataclass(frozen=True)
class FailureRecord:
    """What a failing rank says about itself; ``trace`` is the traceback as text, "" where there is none."""

    rank: int
    kind: FailureKind
    phase: str
    reason: str
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException, *, rank: int, phase: str, place: str) -> FailureRecord:
        """From an exception; ``place`` is the user's last frame, "file:line in function"."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, RankloomError):
            kind = FailureKind.USER if isinstance(error, UserError) else FailureKind.RUN
            return cls(rank, kind, phase, str(error), trace)
        told = any(text in trace for text in _TOLD_OF_ANOTHER_RANK)
        reason = f"{type(error).__name__}: {error} ({place})"
        return cls(rank, FailureKind.FOLLOW_UP if told else FailureKind.OWN, phase, reason, trace)

    def write(self, file: Path) -> None:
        """Complete or not there: the launcher may be reading."""
        partial = file.with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(file)

    @classmethod
    def read(cls, file: Path) -> FailureRecord | None:
        if not file.exists():
            return None
        values = json.loads(file.read_text())
        return cls(**{**values, "kind": FailureKind(values["kind"])})


@dataclass(frozen=True)
class RankExit:
    """The end of one rank's process as the launcher sees it; ``exitcode`` is minus the signal that ended it.

    ``phase`` is the last one the rank was in; ``output`` what it printed, ``log`` the file that holds it.
    """

    rank: int
    exitcode: int
    phase: str = ""
    record: FailureRecord | None = None
    output: str = ""
    log: str = ""

    @property
    def is_follow_up(self) -> bool:
        return self.record is not None and self.record.kind is FailureKind.FOLLOW_UP

    @property
    def priority(self) -> int:
        """The lower, the likelier the cause of the others."""
        if self.record is None:
            return 1 if self.exitcode < 0 else 2
        return {FailureKind.USER: 0, FailureKind.RUN: 0, FailureKind.OWN: 1, FailureKind.FOLLOW_UP: 3}[
            self.record.kind
        ]


def first_cause(exits: Sequence[RankExit]) -> RankExit:
    """Of failed exits in the order they were seen, the one to report."""
    return min(exits, key=lambda rank_exit: rank_exit.priority)


def to_error(failed: RankExit, layout: GTPParallelLayout) -> RankloomError:
    """The exception for the user; its cause, if any, carries the rank's traceback."""
    record = failed.record
    if record is not None and record.kind is FailureKind.USER:
        return _caused(UserError(record.reason), record)
    if record is not None and record.kind is FailureKind.RUN:
        return _caused(RunError(record.reason), record)
    who = f"rank {failed.rank} ({layout.coords(failed.rank).describe()})"
    reason = record.reason if record is not None else _reason_of_exit(failed.exitcode)
    lines = [f"{who} failed in {failed.phase or 'an unknown phase'}: {reason}", *_last_lines(failed)]
    return _caused(RunError("\n".join(lines)), record)


class _RankTraceback(Exception):  # noqa: N818  (not raised: it only carries the text)
    """Stands where the cause of an exception would, as the exception itself was in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _caused(error: RankloomError, record: FailureRecord | None) -> RankloomError:
    if record is not None and record.trace:
        error.__cause__ = _RankTraceback(record.trace)
    return error


def _reason_of_exit(exitcode: int) -> str:
    if exitcode >= 0:
        return f"its process ended with exit code {exitcode} and no message"
    name = signal.Signals(-exitcode).name
    if name == "SIGKILL":
        return (
            "its process was ended by SIGKILL; if nobody did that, the machine ran out of host memory "
            "(the kernel's log, dmesg, tells)"
        )
    return f"its process was ended by {name}"


def _last_lines(failed: RankExit) -> list[str]:
    """The traceback is left to the log: its end, the reason, has been said, and --debug shows it."""
    trace = failed.record.trace.rstrip() if failed.record is not None else ""
    lines = failed.output.rstrip().removesuffix(trace).rstrip().splitlines()[-_NUM_LAST_LINES:]
    place = [f"its log: {failed.log}"] if failed.output else []  # an empty one is removed
    return [*(["the last it printed:"] if lines else []), *(f"  {line}" for line in lines), *place]
