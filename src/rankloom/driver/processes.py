"""Processes by more than their ids, which are used again: no other one is ever taken for a rank."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rankloom.train.rank_files import RankFiles

__all__ = ["Process", "pid_file"]


def pid_file(files: RankFiles) -> Path:
    """Where a rank writes which process it is."""
    return files.folder / f"rank-{files.rank}.pid"


@dataclass(frozen=True)
class Process:
    """A process of this machine: its id, and when it started, as Linux counts it ("" elsewhere)."""

    pid: int
    started: str

    @classmethod
    def current(cls) -> Self:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """The one that has this id now."""
        return cls(pid, _stat(pid)[1])

    @classmethod
    def read(cls, file: Path) -> Self:
        pid, _, started = file.read_text().partition(" ")
        return cls(int(pid), started)

    def write(self, file: Path) -> None:
        """Complete or not there: somebody may be reading."""
        partial = file.with_suffix(".tmp")
        partial.write_text(f"{self.pid} {self.started}")
        partial.rename(file)

    def kill(self) -> None:
        """Ends it with SIGKILL, unless it has ended, or nobody can tell."""
        if self.is_running():
            with suppress(ProcessLookupError):  # it ended in this moment
                os.kill(self.pid, signal.SIGKILL)

    def is_running(self) -> bool:
        """False where nobody can tell. One whose parent has not looked at its end yet is not running."""
        state, started = _stat(self.pid)
        return state not in ("", "Z", "X") and started == self.started


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process and when it started; "" for both where it is gone, or there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
