"""The local engine: starts all ranks on this machine, shows what rank 0 tells, and stops all at the first
failure.

This process imports no torch. Ranks are forked from a server process that has everything imported, find each
other through a file, and end when this process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

from rankloom.config import ResolvedConfig
from rankloom.errors import RunError, UserError
from rankloom.train.failures import FailureRecord, RankExit, first_cause, to_error
from rankloom.train.rank_files import PhaseFile, RankFiles
from rankloom.train.rank_main import RankTask, RunFunction, local_rank_main, train
from rankloom.train.reporting import Reporter, deliver
from rankloom.train.run_lock import run_lock
from rankloom.train.signals import handler, interrupts_ignored, signals_as_interrupt
from rankloom.train.stopping import STOP_SIGNALS, Deadline, StopFile

__all__ = ["end_forkserver", "run_local"]

PRELOAD = ("__main__", "rankloom.train.loop", "torch.distributed", "transformers.modeling_utils")
_GRACE_S = 0.5  # after a first failed exit: the rank that caused it may end a moment later
_END_PATIENCE_S = 10.0  # for killed processes to be gone
_LONG_GRACE_S = 5.0  # the same where all failures so far only tell of another rank's end
_LOG_END_BYTES = 65_536


def run_local(
    resolved: ResolvedConfig, *, reporter: Reporter, run: RunFunction = train
) -> Mapping[str, object]:
    """Train on ``resolved.layout.world_size`` processes of this machine; returns rank 0's summary.

    ``run`` is what each rank executes, a function at the top level of a module. Whatever a rank prints goes
    to ``<checkpoint.dir>/logs/rank-N.log``. When this returns or raises, no rank is left.

    Raises UserError or RunError for the first rank that failed, with rank, coordinates, phase and reason;
    KeyboardInterrupt on Ctrl-C and SIGHUP, and on SIGTERM and SIGUSR1 unless the run is in its steps and can
    end with a checkpoint: then the first of these makes it do so. Other runs are kept out of
    ``checkpoint.dir``.
    """
    log_folder = Path(resolved.checkpoint.dir) / "logs"
    temporary = tempfile.TemporaryDirectory(prefix="rankloom-")
    with signals_as_interrupt(), run_lock(resolved), temporary as folder:
        log_folder.mkdir(parents=True, exist_ok=True)
        gang = _Gang(resolved, Path(folder), log_folder, reporter)
        try:
            gang.start(run)
            with gang.signals():
                return gang.supervise()
        finally:
            gang.stop()


def end_forkserver() -> None:
    """End the server process that ranks are forked from, at once; the next ``run_local`` starts another."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


class _Gang:
    """The ranks of one run as processes."""

    def __init__(self, resolved: ResolvedConfig, folder: Path, log_folder: Path, reporter: Reporter) -> None:
        self._resolved, self._reporter = resolved, reporter
        self._files = [RankFiles(folder, log_folder, rank) for rank in resolved.layout.ranks]
        self._processes: list[ForkServerProcess] = []
        self._events: Connection | None = None
        self._summary: Mapping[str, object] = {}
        self._in_steps = self._asked = False

    def start(self, run: RunFunction) -> None:
        launched_at = time.time()
        deadline = Deadline.of(self._resolved, started=launched_at)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOAD))
        resource_tracker.ensure_running()  # the forkserver would start it, and that unblocks signals
        with _interrupts_blocked(), _threads_of_a_rank() as num_threads:  # both are inherited
            forkserver.ensure_running()
        self._events, sender = context.Pipe(duplex=False)
        for rank, files in enumerate(self._files):
            task = RankTask(
                self._resolved, rank, len(self._files), files, run, num_threads, launched_at, deadline
            )
            arguments = (task, sender if rank == 0 else None)
            process = context.Process(
                target=local_rank_main, args=arguments, name=f"rank {rank}", daemon=True
            )
            self._processes.append(process)
            _start(process)
        sender.close()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """What asks a run to end is passed on to its ranks, once, where they can end it with a checkpoint."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._summary:
                return  # all is done and told
            if not self._in_steps or self._asked or not self._resolved.checkpoint.saves:
                raise KeyboardInterrupt
            self._asked = True
            StopFile(self._files[0].stop).ask(signal.Signals(number).name)

        with ExitStack() as handlers:
            for number in STOP_SIGNALS:
                handlers.enter_context(handler(number, on_signal))
            yield

    def supervise(self) -> Mapping[str, object]:
        """Wait for all ranks, or for the first failure and what comes with it."""
        running = {process.sentinel: rank for rank, process in enumerate(self._processes)}
        failed: list[RankExit] = []
        failed_at = 0.0
        while running and not (failed and time.monotonic() >= failed_at + _grace_s(failed)):
            patience = max(0.0, failed_at + _grace_s(failed) - time.monotonic()) if failed else None
            ready = wait([*running, *([self._events] if self._events else [])], patience)
            if self._events in ready:
                self._show_event()
            for rank in [running.pop(sentinel) for sentinel in list(running) if sentinel in ready]:
                rank_exit = self._exit_of(rank)
                if rank_exit.exitcode != 0:
                    failed_at = failed_at if failed else time.monotonic()
                    failed.append(rank_exit)
        while self._events is not None and self._events.poll():
            self._show_event()
        if failed:
            raise to_error(first_cause(failed), self._resolved.layout)
        return self._summary

    def stop(self) -> None:
        """End what is still running; afterwards no process is left, but those that no signal ends: they are
        named."""
        with interrupts_ignored():
            started = [process for process in self._processes if process.pid is not None]
            for process in started:
                process.kill()  # also reaches a stopped process; nothing to do for one that ended
            deadline = time.monotonic() + _END_PATIENCE_S
            for process in started:
                process.join(max(0.0, deadline - time.monotonic()))
            if left := [f"{p.name} (process {p.pid})" for p in started if p.is_alive()]:
                self._reporter.note(
                    f"cannot be ended: {', '.join(left)}; a process that waits for a disk or a device may go "
                    "on waiting"
                )
            if self._events is not None:
                self._events.close()
            self._remove_empty_logs()

    def _show_event(self) -> None:
        assert self._events is not None
        try:
            event = self._events.recv()
        except (EOFError, OSError):  # rank 0 ended, perhaps in the middle of an event
            self._events.close()
            self._events = None
            return
        self._in_steps = self._in_steps or event[0] == "start"
        if event[0] == "finish":
            self._summary = event[1][0]
        deliver(event, self._reporter)

    def _exit_of(self, rank: int) -> RankExit:
        process, files = self._processes[rank], self._files[rank]
        process.join()
        assert process.exitcode is not None
        return RankExit(
            rank,
            process.exitcode,
            phase=PhaseFile.read(files.phase),
            record=FailureRecord.read(files.failure),
            output=_end_of(files.log),
            log=str(files.log),
        )

    def _remove_empty_logs(self) -> None:
        for files in self._files:
            if files.log.exists() and files.log.stat().st_size == 0:
                files.log.unlink()


def _start(process: ForkServerProcess) -> None:
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        raise RunError(
            "the process that the ranks are forked from ended, probably while it imported torch; "
            "python -c 'import torch, transformers' shows why"
        ) from error


def _end_of(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
        return file.read().decode(errors="replace")


def _grace_s(failed: list[RankExit]) -> float:
    return _LONG_GRACE_S if all(rank_exit.is_follow_up for rank_exit in failed) else _GRACE_S


@contextmanager
def _threads_of_a_rank() -> Iterator[int]:
    """One thread a rank unless the user says otherwise; OpenMP reads it when the server imports torch."""
    before = os.environ.get("OMP_NUM_THREADS")
    num_threads = _num_threads(before or "1")
    os.environ["OMP_NUM_THREADS"] = before or "1"
    try:
        yield num_threads
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def _num_threads(text: str) -> int:
    """The first of the numbers that OpenMP takes, one a level of nesting."""
    first = text.split(",")[0].strip()
    if not first.isascii() or not first.isdigit() or int(first) < 1:
        raise UserError(f"the environment variable OMP_NUM_THREADS is {text!r}; it must be a number from 1")
    return int(first)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Put Ctrl-C off; a process started meanwhile, and those forked from it, never see one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
