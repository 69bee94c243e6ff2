"""The pool itself, in the test process: starts ranks once, hands them bodies, and rebuilds after a failure.

A case of world size n runs on the first n ranks of one gang that grows on demand. Ranks come from a
forkserver that has torch and the model classes loaded. Any failure ends the whole gang: the next case starts
new ranks (about 0.3 s).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.pool.worker import Case, Outcome, serve

__all__ = ["PRELOAD", "RankPool", "RanksFailed"]

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.mistral.modeling_mistral",
)
_FOLLOW_UP_ERRORS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_GRACE_S = 0.5  # after a first failure, how long others may still answer for themselves


class RanksFailed(Exception):  # noqa: N818  (reads as what happened: "the ranks failed")
    """Ranks of a case raised, died or hung. ``failures``: rank -> what it did, the likely cause first."""

    def __init__(self, failures: dict[int, str]) -> None:
        self.failures = failures
        super().__init__("\n".join(f"--- rank {rank}: {text.rstrip()}" for rank, text in failures.items()))


@dataclass
class _Rank:
    process: Any
    connection: Connection
    log: Path
    stacks: Path


class RankPool:
    """Ranks that stay; ``run`` calls a body on some of them inside a process group of their own."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._folder = Path(tempfile.mkdtemp(prefix="rank-pool-"))
        self._gang: list[_Rank] = []
        self._serial = itertools.count()
        self._context.set_forkserver_preload(list(PRELOAD))
        with _one_thread_a_rank():  # at once, before code under test starts one that has loaded less
            forkserver.ensure_running()

    def run(
        self, world_size: int, body: Callable[..., Any], *args: Any, timeout_s: float = 60.0
    ) -> list[Any]:
        """Results of ``body(rank, world_size, *args)`` in rank order.

        Raises RanksFailed when a rank raises, dies, or has not answered after ``timeout_s`` seconds.
        """
        call = pickle.dumps((body, args))
        if not all(member.process.is_alive() for member in self._gang):
            self.stop()
        self._grow_to(world_size)
        gang = self._gang[:world_size]
        store_file = str(self._folder / f"store-{next(self._serial)}")
        for rank, member in enumerate(gang):
            member.connection.send(Case(call, tuple(sys.path), rank, world_size, store_file, timeout_s + 30))
        outcomes, failures = _collect(gang, timeout_s)
        if failures:
            self.stop()
            raise RanksFailed(failures)
        return [outcomes[rank].result for rank in range(world_size)]

    def stop(self) -> None:
        """End all ranks; a later ``run`` starts new ones."""
        for member in self._gang:
            member.process.kill()
        for member in self._gang:
            member.process.join()
            member.connection.close()
        self._gang = []

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _grow_to(self, world_size: int) -> None:
        while len(self._gang) < world_size:
            self._gang.append(self._start_rank())

    def _start_rank(self) -> _Rank:
        name = f"rank-{next(self._serial)}"
        log, stacks = self._folder / f"{name}.log", self._folder / f"{name}.stacks"
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, str(log), str(stacks)), daemon=True)
        process.start()
        theirs.close()
        return _Rank(process, ours, log, stacks)


@contextmanager
def _one_thread_a_rank() -> Any:
    """The forkserver keeps the environment of its first start, and torch reads it when imported there."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _collect(gang: list[_Rank], timeout_s: float) -> tuple[dict[int, Outcome], dict[int, str]]:
    """Wait for all ranks; after a first failure only a moment, since the others may wait for that rank."""
    pending = dict(enumerate(gang))
    outcomes: dict[int, Outcome] = {}
    failures: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    while pending and (ready := wait([m.connection for m in pending.values()], deadline - time.monotonic())):
        for rank in [r for r, member in pending.items() if member.connection in ready]:
            outcome = _receive(pending.pop(rank), rank, failures)
            if outcome is not None:
                outcomes[rank] = outcome
        if failures:
            deadline = min(deadline, time.monotonic() + _GRACE_S)
    if pending and not failures:
        failures = {rank: _describe_hung(member, timeout_s) for rank, member in pending.items()}
    return outcomes, dict(sorted(failures.items(), key=lambda item: _is_follow_up(item[1])))


def _receive(member: _Rank, rank: int, failures: dict[int, str]) -> Outcome | None:
    try:
        outcome = pickle.loads(member.connection.recv_bytes())
    except (EOFError, OSError):
        failures[rank] = _describe_dead(member)
        return None
    if outcome.error_type:
        failures[rank] = (
            f"raised {outcome.error_type}: {outcome.error}\n{outcome.traceback}{_log_tail(member)}"
        )
    return outcome


def _describe_dead(member: _Rank) -> str:
    member.process.join(timeout=5)
    code = member.process.exitcode
    how = (
        f"was ended by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exited with {code}"
    )
    return how + _log_tail(member)


def _describe_hung(member: _Rank, timeout_s: float) -> str:
    os.kill(member.process.pid, signal.SIGUSR1)
    for _ in range(20):
        time.sleep(0.02)
        if stack := member.stacks.read_text():
            return f"has not answered after {timeout_s} s; it is here:\n{stack}{_log_tail(member)}"
    return f"has not answered after {timeout_s} s and shows no sign of life{_log_tail(member)}"


def _log_tail(member: _Rank) -> str:
    text = member.log.read_text(errors="replace") if member.log.exists() else ""
    return f"\nlast output:\n{text[-2000:]}" if text else ""


def _is_follow_up(text: str) -> bool:
    return any(error in text for error in _FOLLOW_UP_ERRORS)
