"""What the ranks train on, step by step, from either source of rows: planned before the run, or Energon's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from rankloom.comm import Communicator
from rankloom.config import ResolvedConfig
from rankloom.data import Counts, GlobalStream, LaneLoader, LaneMicrobatch, LaneReader, Row
from rankloom.data.dealing import Imbalance
from rankloom.data.delivery import check_lanes
from rankloom.data.facts import left_out
from rankloom.data.prepare import PreparedData
from rankloom.data.state import DataState, LaneState
from rankloom.errors import UserError

__all__ = ["Batches", "PlannedBatches", "StepFacts", "refuse_other_source"]

CHATS = "chats"


def refuse_other_source(state: Mapping[str, Any], source: str) -> None:
    """Raises UserError where a run was saved with another data.source."""
    if state.get("source") != source:
        raise UserError(
            f"the run was saved with data.source {state.get('source')}, now it is {source}: it cannot "
            "continue in its data; set it back"
        )


class StepFacts(NamedTuple):
    """A step in numbers, equal on all ranks.

    ``num_rows``: with fillers; ``epochs``: trained on after it; ``dropped_rows``: left out before the next
    step.
    """

    num_rows: int
    counts: Counts
    epochs: float
    dropped_rows: int
    imbalance: Imbalance


class Batches(Protocol):
    """The batches of a run as one rank sees them. Steps count from 0 and come in order."""

    lane: int

    @property
    def planned(self) -> PlannedBatches | None:
        """Where every rank knows all rows before the run: what knows them."""

    def verify(self, step0: int) -> None:
        """Compares over all ranks what they are about to train on. A collective; raises RunError naming
        ranks."""

    def read_ahead(self, *, first: int, last: int) -> None:
        """On a lane's owner, reads these steps in the background from here on; `close` ends it."""

    def rows(self, step0: int) -> Sequence[tuple[Row, ...]]:
        """Which rows the lane trains on, a tuple a microbatch."""

    def facts(self, step0: int) -> StepFacts:
        """A collective, where only owners know what is in their rows."""

    def read(self, step0: int) -> tuple[Sequence[LaneMicrobatch | None], float]:
        """The microbatches on the lane's owner, null elsewhere; and the seconds that they were waited for. No
        collective: an owner may read ahead of the step that is trained on, once a step."""

    def report(self, step0: int) -> list[list[dict[str, Any]]]:
        """Of each lane its rows, by number and epoch, with the names of their records. A collective."""

    def left_out(self) -> tuple[Mapping[str, int], str]:
        """Records that are not trained on, by reason; and in words with what was cut. A collective."""

    def state(self, num_steps: int, consumed: Counts) -> dict[str, Any]:
        """Where the run stands in its data after its first ``num_steps`` steps, as JSON, without what single
        lanes tell."""

    def lane_state(self, num_steps: int) -> dict[str, Any] | None:
        """What the owner of a lane adds to it; None on other ranks."""

    def restore(
        self, state: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], *, allowed: Sequence[str]
    ) -> tuple[str, ...]:
        """Goes on where a run was saved, in any layout; before `verify`. ``lanes``: what their owners told;
        ``allowed``: globs of settings whose change begins the data anew. Returns what is to be said of it.
        Raises UserError where the data or its order is another."""

    def close(self) -> None: ...


class PlannedBatches:
    """Rows that every rank knows before the run; `loader` deals them."""

    def __init__(
        self, resolved: ResolvedConfig, comm: Communicator, data: PreparedData, *, is_owner: bool
    ) -> None:
        self.stream = data.stream
        self.lane = resolved.layout.lane(comm.rank)
        self._resolved = resolved
        self._comm = comm
        self._dataset = data.dataset
        self._pad_token_id = data.pad_token_id
        self._is_owner = is_owner
        self.loader = self._loader(data.stream)
        self._reader: LaneReader | None = None

    @property
    def planned(self) -> PlannedBatches | None:
        return self

    def verify(self, step0: int) -> None:
        rows = [row for microbatch in self.loader.rows(step0) for row in microbatch]
        check_lanes(self._comm, self.stream, rows, lane=self.lane, step0=step0)

    def read_ahead(self, *, first: int, last: int) -> None:
        if self._is_owner:
            num_workers = self._resolved.data.num_workers
            self._reader = LaneReader(self.loader, first=first, last=last, num_workers=num_workers)

    def rows(self, step0: int) -> Sequence[tuple[Row, ...]]:
        return self.loader.rows(step0)

    def facts(self, step0: int) -> StepFacts:
        rows = self.stream.batch(step0)
        return StepFacts(
            num_rows=len(rows),
            counts=self.stream.counts_of(rows),
            epochs=self.stream.epochs_after(step0),
            dropped_rows=self.stream.dropped_after(step0),
            imbalance=self.loader.dealer.imbalance(rows),
        )

    def read(self, step0: int) -> tuple[Sequence[LaneMicrobatch | None], float]:
        if not self._is_owner:
            return [None] * len(self.loader.rows(step0)), 0.0
        if self._reader is not None:
            return self._reader.take(step0)
        since = time.perf_counter()
        return self.loader.step(step0), time.perf_counter() - since

    def report(self, step0: int) -> list[list[dict[str, Any]]]:
        lanes = self.loader.dealer.lanes(self.stream.batch(step0))
        return [
            [self._named(row) for microbatch in dealt for row in microbatch if not row.is_filler]
            for dealt in lanes
        ]

    def left_out(self) -> tuple[Mapping[str, int], str]:
        return self._dataset.skipped, left_out(self._dataset)

    def state(self, num_steps: int, consumed: Counts) -> dict[str, Any]:
        lanes = [
            LaneState.of(self.stream, self.loader.dealer, lane=lane, step=num_steps)
            for lane in range(self.loader.dealer.num_lanes)
        ]
        state = DataState.of(self.stream, step=num_steps, consumed=consumed, lanes=lanes).to_json()
        return {"source": CHATS, **{name: value for name, value in state.items() if name != "lanes"}}

    def lane_state(self, num_steps: int) -> dict[str, Any] | None:
        if not self._is_owner:
            return None
        return asdict(LaneState.of(self.stream, self.loader.dealer, lane=self.lane, step=num_steps))

    def restore(
        self, state: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], *, allowed: Sequence[str]
    ) -> tuple[str, ...]:
        refuse_other_source(state, CHATS)
        saved = DataState.from_json({**state, "lanes": lanes})
        changed = saved.changed_keys(self.stream)
        restart = all(any(fnmatchcase(key, glob) for glob in allowed) for key in changed)
        restored = saved.restore(self.stream, num_lanes=self.loader.dealer.num_lanes, restart=restart)
        self.stream = restored.stream
        self.loader = self._loader(restored.stream)
        return restored.notes

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _loader(self, stream: GlobalStream) -> LaneLoader:
        return LaneLoader(
            stream,
            self._dataset,
            lane=self.lane,
            num_lanes=self._resolved.layout.batch_parallel_size,
            micro_batch_size=self._resolved.train.micro_batch_size,
            pad_token_id=self._pad_token_id,
            balance=self._resolved.data.balance,
        )

    def _named(self, row: Row) -> dict[str, Any]:
        records = [self._dataset.record_name(record) for record in row.records]
        return {"row": row.row_id, "epoch": row.epoch, "records": records}
