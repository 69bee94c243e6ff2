"""The torchrun engine: this process is one rank that torchrun started; it joins the others.

Rank 0 alone shows progress. An error that all ranks have (a missing file, a bad setting) is shown by one of
them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from rankloom.config import ResolvedConfig
from rankloom.errors import RankloomError, RunError, UserError
from rankloom.train.failures import FailureKind, FailureRecord, RankExit, to_error
from rankloom.train.rank_main import RunFunction, last_user_frame, run_watched, train
from rankloom.train.reporting import Reporter, SilentReporter
from rankloom.train.run_lock import run_lock
from rankloom.train.stopping import Deadline, Stopping, StopSignals
from rankloom.train.streams import say

if TYPE_CHECKING:
    from torch.distributed import Store

    from rankloom.comm.activity import Activity

__all__ = ["TorchrunEnvironment", "run_torchrun"]

_RETRY_S = 0.1
_AGENT_LOOK_S = 0.5
_WATCHDOG_PATIENCE_S = 1.0  # to reach the store, once; it tries again
_REPORT_PATIENCE_S = 3.0  # to reach the store, when an error is to be shown once
_SHOWN_FIRST_S = 1.0  # torchrun ends all ranks when one ends: let the one that shows the error be first


@dataclass(frozen=True)
class TorchrunEnvironment:
    """What torchrun tells a rank through environment variables."""

    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int
    run: str  # differs between runs and between restarts of one run that share a store
    has_agent: bool = False  # the process that started this one is torchrun's, and stays until its ranks end

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self | None:
        """None where torchrun (or something that speaks like it) did not start this process. Raises UserError
        for values that are no numbers, or do not fit together."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment):
            return None
        rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        if rank >= world_size:
            raise UserError(
                f"the environment variable RANK is {rank} and WORLD_SIZE is {world_size}; ranks count from "
                "0, so RANK must be less than WORLD_SIZE"
            )
        return cls(
            rank=rank,
            local_rank=_number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else 0,
            world_size=world_size,
            master_addr=environment["MASTER_ADDR"],
            master_port=_number(environment, "MASTER_PORT"),
            run="-".join(
                environment.get(key, "0") for key in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            ),
            has_agent="TORCHELASTIC_RUN_ID" in environment,
        )

    def defaults(self) -> dict[str, object]:
        """What a config that does not name engine and world size gets."""
        return {"cluster.engine": "torchrun", "cluster.world_size": self.world_size}

    def connect(self, *, timeout_s: float) -> Store:
        """A new client of the store that torchrun or rank 0 hosts. Raises RuntimeError when there is none.

        It does not count as one of the ranks, which rank 0 waits for.
        """
        from torch.distributed import PrefixStore, TCPStore

        self._await_host(timeout_s)
        store = TCPStore(
            self.master_addr,
            self.master_port,
            self.world_size,
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
        return PrefixStore(f"rankloom/{self.run}", store)

    def _await_host(self, timeout_s: float) -> None:
        """A TCPStore would fill the terminal with C++ frames at each failed try."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection((self.master_addr, self.master_port), timeout=timeout_s).close()
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise RuntimeError(f"{self.master_addr}:{self.master_port}: {error}") from error
            time.sleep(_RETRY_S)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name].strip()
    if not text.isascii() or not text.isdigit():
        raise UserError(
            f"the environment variable {name} is {text!r}; it must be a number. It is torchrun's: with RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, this process is one rank of a run"
        )
    return int(text)


def check_environment(resolved: ResolvedConfig, environment: TorchrunEnvironment | None) -> None:
    """Raises UserError where the config and what started this process do not fit together."""
    cluster = resolved.cluster
    if environment is None:
        if cluster.engine == "torchrun":
            raise UserError(
                "cluster.engine is torchrun, but this process was not started by torchrun; start it with "
                f"torchrun --nproc-per-node {resolved.layout.world_size} -m rankloom train ..., or set "
                f"cluster.engine to local ({resolved.where('cluster.engine')})"
            )
        return
    if cluster.engine != "torchrun":
        raise UserError(
            f"cluster.engine is {cluster.engine}, but torchrun started this process: each of "
            f"{environment.world_size} would start ranks of its own; leave cluster.engine out, or start "
            f"without torchrun ({resolved.where('cluster.engine')})"
        )
    if resolved.layout.world_size != environment.world_size:
        raise UserError(
            f"cluster.world_size {resolved.layout.world_size} is not torchrun's {environment.world_size} "
            "(WORLD_SIZE = nnodes x nproc-per-node); leave cluster.world_size out, or start torchrun with "
            f"{resolved.layout.world_size} processes in all ({resolved.where('cluster.world_size')})"
        )


def run_torchrun(
    resolved: ResolvedConfig,
    *,
    environment: TorchrunEnvironment,
    reporter: Reporter,
    run: RunFunction = train,
) -> None:
    """Train as the rank that ``environment`` names; only rank 0 uses ``reporter``.

    Raises UserError or RunError, and SystemExit with the same code on ranks that leave the message to
    another.
    """
    started, started_at = time.monotonic(), time.time()
    from rankloom.comm.activity import Activity

    leave_signals_to_torchrun()
    reporter = reporter if environment.rank == 0 else SilentReporter()
    reporter.phase("import torch", time.monotonic() - started)
    activity, signals = Activity(), StopSignals()
    arm = signals.arm if resolved.checkpoint.saves else None
    if environment.has_agent:
        _end_with_torchrun(signals)
    try:
        with run_lock(resolved) if environment.rank == 0 else nullcontext():
            run_watched(
                resolved,
                run=run,
                rank=environment.rank,
                local_rank=environment.local_rank,
                init_method="env://",
                reporter=reporter,
                activity=activity,
                stopping=Stopping(
                    asked=signals.asked, deadline=Deadline.of(resolved, started=started_at), arm=arm
                ),
                connect=lambda: environment.connect(
                    timeout_s=min(_WATCHDOG_PATIENCE_S, resolved.comm.timeout_s)
                ),
                on_hang=lambda report: say(f"rankloom train: {report}", sys.stderr),
            )
    except Exception as error:
        leave_to_another(error, environment)
        raise _described(error, resolved, environment, activity) from error


def _end_with_torchrun(signals: StopSignals) -> None:
    """A torchrun that is killed, or sent a signal that it does not handle, leaves its ranks behind, which
    would train on unseen and keep others out of ``checkpoint.dir``."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(_AGENT_LOOK_S)
        if not signals.ask("torchrun has ended"):
            os._exit(1)

    threading.Thread(target=watch, name="torchrun-watch", daemon=True).start()


def leave_signals_to_torchrun() -> None:
    """Until there is something to save, a signal ends this rank at once and without a word: torchrun sends it
    to all ranks and says why."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def leave_to_another(error: Exception, environment: TorchrunEnvironment) -> None:
    """Of the ranks that have the same UserError, let the first return and show it; end the others quietly."""
    if not isinstance(error, UserError):
        return
    try:
        store = environment.connect(timeout_s=_REPORT_PATIENCE_S)
        is_first = store.add("errors shown", 1) == 1
    except RuntimeError:  # nobody hosts the store yet, or any more: rank 0 is surely there
        is_first = environment.rank == 0
    if not is_first:
        time.sleep(_SHOWN_FIRST_S)
        raise SystemExit(error.exit_code)


def _described(
    error: Exception, resolved: ResolvedConfig, environment: TorchrunEnvironment, activity: Activity
) -> RankloomError:
    if isinstance(error, RankloomError):
        return error
    place = last_user_frame(error)
    record = FailureRecord.of(error, rank=environment.rank, phase=activity.phase, place=place)
    if record.kind is FailureKind.FOLLOW_UP:
        return RunError(f"rank {environment.rank} lost another rank in {activity.phase}: {error}")
    return to_error(RankExit(environment.rank, 1, phase=activity.phase, record=record), resolved.layout)
