"""A whole run of one rank that drives itself: start, train to the last step, export."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.train.assemble import connect
from rankloom.train.phases import Phases
from rankloom.train.reporting import Reporter
from rankloom.train.session import GO_ON, Session
from rankloom.train.stopping import Stopping

__all__ = ["run_connected", "run_rank"]


def run_rank(
    resolved: ResolvedConfig,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    init_method: str,
    reporter: Reporter,
    activity: Activity,
    stopping: Stopping = GO_ON,
) -> Mapping[str, object]:
    """Trains as ``rank`` of ``resolved.layout``; returns the summary of the run, complete on rank 0.

    Raises UserError and RunError; whatever it raises, the process is expected to end.
    """
    assert world_size == resolved.layout.world_size
    with Phases(reporter, activity)("connect the ranks"):
        comm = connect(resolved, rank=rank, local_rank=local_rank, init_method=init_method, activity=activity)
    summary = run_connected(resolved, comm, reporter=reporter, stopping=stopping)
    activity.phase = "end: leaving the other ranks"
    comm.close()
    dist.destroy_process_group()
    return summary


def run_connected(
    resolved: ResolvedConfig, comm: Communicator, *, reporter: Reporter, stopping: Stopping = GO_ON
) -> Mapping[str, object]:
    """The same once this rank has its groups; leaves them as they are."""
    session = Session.start(resolved, comm, reporter=reporter, stopping=stopping)
    try:
        if session.first_step <= session.max_steps:
            session.begin()
        for step in range(session.first_step, session.max_steps + 1):
            session.advance(step)
            if session.stopped:
                break
        return session.finish()
    finally:
        session.close()
