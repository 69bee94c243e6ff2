"""The microbatches of a lane, step after step, read ahead of the step that needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rankloom.data.lanes import LaneMicrobatch, MicrobatchBuilder
from rankloom.data.prefetch import DEPTH, Prefetcher
from rankloom.data.processes import BuilderProcesses
from rankloom.data.rows import Row

__all__ = ["LaneReader", "RowSource"]


class RowSource(Protocol):
    """What a lane trains on in each step, counted from 0, and how it becomes arrays."""

    @property
    def build(self) -> MicrobatchBuilder: ...

    def rows(self, step0: int) -> Sequence[tuple[Row, ...]]: ...


class LaneReader:
    """Reads the steps ``first`` .. ``last`` (included; None: without end) of a lane in the background: in a
    thread, or in ``num_workers`` processes. What is read is the same.

    Use it on the lane's owner alone. A context manager: leaving it leaves no thread and no process behind.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        first: int = 0,
        last: int | None = None,
        num_workers: int = 0,
        depth: int = DEPTH,
    ) -> None:
        self._source = source
        self._last = last
        self._num_workers = num_workers
        self._to_ask = first
        self._processes: BuilderProcesses | None = None
        self._prefetcher = Prefetcher(
            self._read, first=first, last=last, depth=depth, name=f"rows of lane {source.build.lane}"
        )

    def take(self, step0: int) -> tuple[list[LaneMicrobatch], float]:
        """The microbatches of a step, which follows the one taken before, and the seconds waited for them.

        Raises RunError, which names the lane and the record, where they cannot be read.
        """
        return self._prefetcher.take(step0)

    @property
    def pids(self) -> list[int]:
        """The processes that read, once they are started."""
        return [] if self._processes is None else self._processes.pids

    def close(self) -> None:
        """Ends reading. Any number of times."""
        if self._processes is not None:
            self._processes.end()  # the thread may be waiting for an answer
        self._prefetcher.close()
        if self._processes is not None:
            self._processes.close()

    def __enter__(self) -> LaneReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, step0: int) -> list[LaneMicrobatch]:
        """In the thread."""
        if self._num_workers == 0:
            return self._source.build(self._source.rows(step0))
        if self._processes is None:
            self._processes = BuilderProcesses(self._source.build, self._num_workers)
        ahead = step0 + self._num_workers
        while self._to_ask < ahead and (self._last is None or self._to_ask <= self._last):
            self._processes.ask(self._to_ask, self._source.rows(self._to_ask))
            self._to_ask += 1
        return self._processes.answer()
