"""A process beside the ranks of a node: it tells of the node, reads what ended ranks left, and ends those
that no longer listen to anybody."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankloom.driver.nvlink import probe_domain
from rankloom.driver.orphans import end_agents_with_parent
from rankloom.driver.processes import Process
from rankloom.train.failures import FailureRecord
from rankloom.train.rank_files import PhaseFile, RankFiles

__all__ = ["NodeKeeper", "RankEnd"]

_LOG_END_BYTES = 65_536
_LOOK_S = 0.02


@dataclass(frozen=True)
class RankEnd:
    """What a rank left: its last phase, what it said of its failure, the end of its log and where that is."""

    rank: int
    phase: str
    record: FailureRecord | None
    output: str
    log: str


class NodeKeeper:
    """One on each node with ranks, made an actor by the placement. Its folder holds one for each gang."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rankloom-"))
        end_agents_with_parent()

    def folder(self) -> str:
        """A folder on this node that only this user can read."""
        return str(self._folder)

    def nvlink_domain(self) -> str | None:
        """What the GPUs of this node report; None where they report none."""
        return probe_domain()

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that are not there on this node."""
        return [path for path in paths if not Path(path).exists()]

    def ends(
        self, gang: str, log_folder: str, ranks: Sequence[int], *, with_log: Sequence[int]
    ) -> list[RankEnd]:
        """What these ranks left; the output of those in ``with_log``, and of those that say they failed."""
        found = []
        for rank in ranks:
            files = RankFiles(self._folder / gang, Path(log_folder), rank)
            record = FailureRecord.read(files.failure)
            output = _end_of(files.log) if record is not None or rank in with_log else ""
            found.append(RankEnd(rank, PhaseFile.read(files.phase), record, output, str(files.log)))
        return found

    def end_ranks(self, gang: str, *, patience_s: float) -> list[int]:
        """Kills every rank of the gang on this node, also one that is stopped, and waits until they are gone;
        the ids of processes that are not."""
        ranks = map(Process.read, (self._folder / gang).glob("rank-*.pid"))
        running = [rank for rank in ranks if rank.is_running()]
        for rank in running:
            rank.kill()
        deadline = time.monotonic() + patience_s
        while (left := [r.pid for r in running if r.is_running()]) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return left

    def leave(self) -> None:
        """Removes the folder; nothing may be asked afterwards."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _end_of(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
        return file.read().decode(errors="replace")
