"""The files through which a local rank and its launcher know of each other, even when the rank is killed."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PhaseFile", "RankFiles"]


@dataclass(frozen=True)
class RankFiles:
    """Where one rank's files are: ``folder`` is removed when the run ends, ``log_folder`` stays."""

    folder: Path
    log_folder: Path
    rank: int

    @property
    def phase(self) -> Path:
        return self.folder / f"rank-{self.rank}.phase"

    @property
    def failure(self) -> Path:
        return self.folder / f"rank-{self.rank}.failure"

    @property
    def stop(self) -> Path:
        """There once all ranks are to end after the step they are in."""
        return self.folder / "stop"

    @property
    def log(self) -> Path:
        """Everything the rank prints."""
        return self.log_folder / f"rank-{self.rank}.log"


class PhaseFile:
    """The rank's current phase in a page of memory that outlives the process; writing costs a microsecond."""

    _NUM_BYTES = 512

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(self._NUM_BYTES))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), self._NUM_BYTES)

    def write(self, phase: str) -> None:
        text = phase.encode()[: self._NUM_BYTES - 1] + b"\0"
        self._page[: len(text)] = text

    @staticmethod
    def read(path: Path) -> str:
        """The last phase written, or "" where the rank has not come so far."""
        return path.read_bytes().split(b"\0")[0].decode(errors="replace") if path.exists() else ""
