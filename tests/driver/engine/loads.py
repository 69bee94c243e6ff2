"""A worker that loads batches and trains on nothing; no torch, so that its ranks start quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import ray

from rankloom.config import ResolvedConfig
from rankloom.driver.actor import RankContext
from rankloom.driver.envelopes import Envelope
from rankloom.driver.worker import RankView, Started, Stepped

NUM_LANES, ROW_TOKENS = 4, 512
ROW_BYTES = 4 * 4 * ROW_TOKENS
MIB = 2**20


class Loads:
    """A worker of four lanes whose batches, of all lanes together, are 1 MiB in step 1, then 4, 16, 64."""

    def __init__(self, context: RankContext, resolved: ResolvedConfig) -> None:
        self._rank, self._layout = context.rank, resolved.layout

    def introduce(self) -> RankView:
        coords = asdict(self._layout.coords(self._rank))
        del coords["rank"]
        return RankView(self._rank, self._layout.fingerprint(), self._layout.sizes, coords)

    def start(self) -> Started:
        return Started(1, 4, ())

    def load_batch(self, step: int) -> Envelope:
        number = 4 ** (step - 1) * MIB // NUM_LANES // ROW_BYTES
        planes = np.full((number, 4, ROW_TOKENS), self._rank, dtype=np.int32)
        return Envelope.of(
            range(self._rank, NUM_LANES * number, NUM_LANES),
            lane=self._layout.lane(self._rank),
            step=step,
            num_microbatches=1,
            num_tokens=planes.size,
            num_bytes=planes.nbytes,
            batch=ray.put(planes),
        )

    def train(self, envelope: Envelope, step: int, *, wish: str = "") -> Stepped:
        planes = ray.get(envelope.batch)
        assert planes.nbytes == envelope.num_bytes
        assert (planes == self._layout.lane(self._rank)).all()
        return Stepped(step, "", (("step", ({"step": step, "bytes": planes.nbytes},), {}),))

    def finish(self) -> tuple[Mapping[str, object], tuple[Any, ...]]:
        return {}, ()


def loads(context: RankContext, resolved: ResolvedConfig) -> Loads:
    return Loads(context, resolved)
