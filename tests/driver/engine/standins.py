"""Workers that take no step: what the controller asks of them, in the order in which it asks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from rankloom.config import ResolvedConfig, resolve
from rankloom.driver.envelopes import Envelope
from rankloom.driver.worker import RankView, Started, Stepped

FIRST, LAST = 1, 4
TIMEOUT_S = 1.5


def config(world_size: int = 4, **parallel: Any) -> ResolvedConfig:
    return resolve(
        {
            "parallel": parallel,
            "train": {"global_batch_size": 8, "max_steps": LAST},
            "cluster": {"world_size": world_size},
            "comm": {"timeout_s": TIMEOUT_S},
        }
    )


class StandIn:
    """A worker that loads the rows lane, lane + N, ... and notes in ``log`` what it was asked for."""

    def __init__(self, resolved: ResolvedConfig, rank: int, log: list[tuple[Any, ...]]) -> None:
        self.layout, self.rank, self.log = resolved.layout, rank, log
        self.lane = resolved.layout.lane(rank)
        self.num_lanes = resolved.layout.batch_parallel_size
        self.stops_after = LAST
        self.trained: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def introduce(self) -> RankView:
        coords = asdict(self.layout.coords(self.rank))
        del coords["rank"]
        return RankView(self.rank, self.layout.fingerprint(), self.layout.sizes, coords)

    def start(self) -> Started:
        return Started(FIRST, LAST, self.told("start", max_steps=LAST, first_step=FIRST))

    def load_batch(self, step: int) -> Envelope:
        self.log.append(("load", self.rank, step))
        return self.envelope(step)

    def envelope(self, step: int) -> Envelope:
        rows = [8 * step + self.lane + self.num_lanes * row for row in range(8 // self.num_lanes)]
        return Envelope.of(
            rows, lane=self.lane, step=step, num_microbatches=1, num_tokens=5, num_bytes=9, batch=self.rank
        )

    def train(self, envelope: Envelope, step: int, *, wish: str = "") -> Stepped:
        self.log.append(("train", self.rank, step))
        self.trained.append((envelope.lane, envelope.step))
        stopped = f"after step {step} ({wish})" if wish else ""
        return Stepped(step, stopped, self.told("step", {"step": step}))

    def finish(self) -> tuple[Mapping[str, object], tuple[Any, ...]]:
        return {"steps": len(self.trained)}, ()

    def told(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return ((name, args, kwargs),) if self.rank == 0 else ()


class WrongLane(StandIn):
    """Sends another lane's rows."""

    def envelope(self, step: int) -> Envelope:
        return replace(super().envelope(step), lane=0)


class OldStep(StandIn):
    """Sends rows of the step before."""

    def envelope(self, step: int) -> Envelope:
        return super().envelope(max(1, step - 1))


class SameRows(StandIn):
    """Sends lane 0's rows as its own."""

    def envelope(self, step: int) -> Envelope:
        lane, self.lane = self.lane, 0
        made = super().envelope(step)
        self.lane = lane
        return replace(made, lane=lane)


class FailsToLoad(StandIn):
    """Cannot read the rows of step 3."""

    def load_batch(self, step: int) -> Envelope:
        if step == 3:
            raise ValueError("chats.jsonl is gone")
        return super().load_batch(step)


class NeverLoads(StandIn):
    """Waits for the rows of a step for as long as there is a test."""

    over = threading.Event()
    step = FIRST

    def load_batch(self, step: int) -> Envelope:
        if step == self.step:
            assert self.over.wait(timeout=20)
        return super().load_batch(step)


class NeverLoadsLater(NeverLoads):
    step = 3


class Elsewhere(StandIn):
    """Takes itself for another rank's place on one axis."""

    def introduce(self) -> RankView:
        view = super().introduce()
        return replace(view, coords={**view.coords, "gtp_batch": 1 - view.coords["gtp_batch"]})


class OtherLayout(StandIn):
    """Was given other settings."""

    def introduce(self) -> RankView:
        other = config(self.layout.world_size, tensor_parallel_num_weight_shards=4).layout
        return replace(super().introduce(), fingerprint=other.fingerprint(), sizes=other.sizes)
