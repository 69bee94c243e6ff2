"""Processes that build the rows of a lane, for one thread that asks them in turn.

A process is a fresh interpreter. It speaks through its standard input and output. So it ends when whoever
started it does, however that ends: what it reads from, or writes to, is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

from rankloom.data.lanes import LaneMicrobatch, MicrobatchBuilder
from rankloom.data.messages import receive, send
from rankloom.data.rows import Row
from rankloom.errors import RunError

__all__ = ["BuilderProcesses", "Processes"]


class Processes:
    """A process for each of ``builders``, which answers what its builder makes of the orders it is given.

    Give each process one order at a time, so that neither side writes while the other does. ``lane``: whose
    rows they build, for messages.
    """

    def __init__(self, builders: Sequence[Callable[[Any], object]], *, lane: int) -> None:
        assert builders
        self._lane = lane
        self._processes = [_start() for _ in builders]
        for number, builder in enumerate(builders):
            self.order(number, builder, when="when it started")

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def order(self, number: int, order: object, *, when: str) -> None:
        """Raises RunError where process ``number`` is gone; ``when``: for its message."""
        try:
            send(_pipe(self._processes[number].stdin), order)
        except OSError:
            raise self._gone(number, when) from None

    def answer_of(self, number: int, *, when: str) -> Any:
        """To the order that process ``number`` was given. Raises what its builder raised, or RunError where
        the process is gone."""
        try:
            found = receive(_pipe(self._processes[number].stdout))
        except EOFError:
            raise self._gone(number, when) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def end(self) -> None:
        """Ends the processes; whoever waits for an answer gets a RunError. Any number of times."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def close(self) -> None:
        """`end`, once nobody else uses this any more."""
        self.end()
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not sent need not be
                    _pipe(stream).close()

    def _gone(self, number: int, when: str) -> RunError:
        code = self._processes[number].wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        which = f"loader process {number + 1} of {len(self._processes)} (data.num_workers)"
        return RunError(f"lane {self._lane}: {which} {how} {when}")


class BuilderProcesses(Processes):
    """``num_workers`` processes with a copy of ``build`` each; files that it maps are mapped again there. No
    training library is loaded.

    Orders are given with `ask` and answered by `answer` in the same order, ``num_workers`` at a time.
    """

    def __init__(self, build: MicrobatchBuilder, num_workers: int) -> None:
        super().__init__([build] * num_workers, lane=build.lane)
        self._asked: deque[tuple[int, int]] = deque()  # process and step of each order that is not answered
        self._turn = 0

    def ask(self, step0: int, rounds: Sequence[tuple[Row, ...]]) -> None:
        """Orders the microbatches of a step (from 0) from the process whose turn it is."""
        number, self._turn = self._turn, (self._turn + 1) % len(self)
        self.order(number, rounds, when=f"before step {step0 + 1}")
        self._asked.append((number, step0))

    def answer(self) -> list[LaneMicrobatch]:
        """Those of the earliest order that has no answer. Raises RunError where they cannot be built, or the
        process is gone."""
        number, step0 = self._asked.popleft()
        found: list[LaneMicrobatch] = self.answer_of(
            number, when=f"while it read the rows of step {step0 + 1}"
        )
        return found


def _start() -> subprocess.Popen[bytes]:
    """It finds this package where this process does; its errors go where this process's go."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return subprocess.Popen(
        [sys.executable, "-m", "rankloom.data.builder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
