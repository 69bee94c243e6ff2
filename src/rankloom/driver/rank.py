"""The worker of a training run in the process of a rank with Ray."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import ray

from rankloom.comm import Activity
from rankloom.comm.watchdog import Watchdog
from rankloom.config import ResolvedConfig
from rankloom.driver.actor import RankContext
from rankloom.driver.worker import TrainWorker
from rankloom.train.assemble import connect
from rankloom.train.stopping import STOP_SIGNALS, Deadline

if TYPE_CHECKING:
    from rankloom.comm import Communicator

__all__ = ["ObjectStore", "train_worker"]

_STORE_PATIENCE_S = 1.0  # of a watchdog, which tries again


class ObjectStore:
    """Ray's: what is put on a node is read on it without a copy, and fetched once by each other node."""

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, reference: Any) -> Any:
        return ray.get(reference)


def train_worker(context: RankContext, resolved: ResolvedConfig, deadline: Deadline | None) -> TrainWorker:
    """The worker of ``context.rank``, under a watchdog whose report the gang finds."""
    activity = Activity(on_phase=context.on_phase)
    patience_s = min(_STORE_PATIENCE_S, resolved.comm.timeout_s)
    Watchdog(
        activity,
        lambda: context.environment.connect(timeout_s=patience_s),
        resolved.layout,
        rank=context.rank,
        timeout_s=resolved.comm.timeout_s,
        on_failure=context.on_hang,
    ).start()

    def join() -> Communicator:
        local_rank = context.environment.local_rank
        return connect(
            resolved, rank=context.rank, local_rank=local_rank, init_method="env://", activity=activity
        )

    arm = _leave_signals_to_driver if resolved.checkpoint.saves else None
    return TrainWorker(resolved, context.rank, connect=join, store=ObjectStore(), deadline=deadline, arm=arm)


def _leave_signals_to_driver() -> None:
    """A scheduler may send its signal to every process of a job."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
