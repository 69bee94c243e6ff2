"""Workers of a run in which something breaks on one lane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rankloom.data import lanes
from rankloom.data.rows import Row
from rankloom.driver.rank import train_worker
from rankloom.driver.worker import TrainWorker

BROKEN_LANE, LAST_ROW = 1, 30
LAST_STEP = 3
LONG_S = 600.0


def never_reads(context: Any, resolved: Any, deadline: Any) -> TrainWorker:
    """The loader of lane 1 does not come to an end, from the first row on."""
    if resolved.layout.lane(context.rank) == BROKEN_LANE:
        lanes.build_microbatch = lambda *args, **kwargs: time.sleep(LONG_S)
    return train_worker(context, resolved, deadline)


class NeverReturns(TrainWorker):
    """Rank 1 takes a step as all do, and then does not come back from it."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        told = super().train(*args, **kwargs)
        if self._rank == 1 and told.step == LAST_STEP:
            time.sleep(LONG_S)
        return told


def never_returns(context: Any, resolved: Any, deadline: Any) -> TrainWorker:
    worker = train_worker(context, resolved, deadline)
    worker.__class__ = NeverReturns
    return worker


def cannot_read(context: Any, resolved: Any, deadline: Any) -> TrainWorker:
    """The loader of lane 1 fails once it comes to row 30."""
    if resolved.layout.lane(context.rank) == BROKEN_LANE:
        build = lanes.build_microbatch

        def broken(rows: Sequence[Row], *args: Any, **kwargs: Any) -> Any:
            if any(row.row_id >= LAST_ROW for row in rows):
                raise OSError("the disk is gone")
            return build(rows, *args, **kwargs)

        lanes.build_microbatch = broken
    return train_worker(context, resolved, deadline)
