"""The microbatches of a lane from its virtual lanes, made ahead of the step that needs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.prepare import EnergonRunData
from rankloom.data.energon.remote import RemoteVirtualLanes
from rankloom.data.energon.state import EnergonState
from rankloom.data.energon.virtual import EnergonRow
from rankloom.data.lanes import LaneMicrobatch, build_microbatch
from rankloom.data.prefetch import Prefetcher
from rankloom.data.rows import Counts, Row

__all__ = ["EnergonLoader", "LaneStep"]


@dataclass(frozen=True)
class LaneStep:
    """What one lane trains on in a step.

    Attributes:
        microbatches: its arrays.
        counts: what they hold.
        work: sum over its chats of length^2.
        epochs: see `VirtualLanes.epochs`, after this step.
        skipped: samples left out so far, by reason; those of samples read ahead for packing count already.
        num_truncated: chats of this step of which the end was cut off.
        places: of each row its number, epoch, and where its samples are.
    """

    microbatches: list[LaneMicrobatch]
    counts: Counts
    work: int
    epochs: float
    skipped: Counter[str]
    num_truncated: int
    places: list[dict[str, Any]]
    numbers: list[tuple[int, int]]  # epoch and sample


class EnergonLoader:
    """Reads for lane ``lane`` of ``num_lanes``: on its owner alone, in one thread at a time, which has the
    rows made in ``data.num_workers`` processes if there are any. They are the same.

    Steps are asked for in order. `take` keeps the state exact: what is made ahead is not in it.
    """

    def __init__(self, data: EnergonRunData, *, lane: int, num_lanes: int, micro_batch_size: int) -> None:
        self._data = data
        self._rows = data.rows
        self._micro_batch_size = micro_batch_size
        recipe = data.lane(lane, num_lanes)
        self.lanes: VirtualLanes | RemoteVirtualLanes = (
            RemoteVirtualLanes(recipe, data.num_workers) if data.num_workers else recipe.open()
        )
        self._held: tuple[int, LaneStep] | None = None
        self._prefetcher: Prefetcher[LaneStep] | None = None

    def restore(self, state: EnergonState) -> None:
        """Goes on where a run was saved, before the first step is asked for."""
        self._rows = self._rows.continued_from(step=state.step, row=state.consumed.rows)
        self.lanes.restore(state.consumed.rows, state.virtual_lanes)

    def read_ahead(self, *, first: int, last: int) -> None:
        """Makes the steps ``first`` .. ``last`` in a thread, ahead of their `take`."""
        if self._held is not None:
            first += 1
        name = f"rows of lane {self.lanes.lane}"
        self._prefetcher = Prefetcher(self._make, first=first, last=last, name=name)

    def look(self, step0: int) -> LaneStep:
        """The step that comes next; `take` gives it once more."""
        if self._held is None:
            self._held = (step0, self._next(step0))
        held, step = self._held
        assert held == step0, (held, step0)
        return step

    def take(self, step0: int) -> tuple[LaneStep, float]:
        """A step, and the seconds waited for it."""
        since = time.perf_counter()
        step = self.look(step0)
        self._held = None
        return step, time.perf_counter() - since

    def state(self, num_steps: int) -> dict[int, dict[str, Any]]:
        """Of each virtual lane of this lane, after the first ``num_steps`` steps of the run."""
        return self.lanes.state(self._rows.end(num_steps))

    def close(self) -> None:
        """Leaves no thread and no process behind. Any number of times."""
        if isinstance(self.lanes, RemoteVirtualLanes):
            self.lanes.end()  # the thread may be waiting for an answer
        if self._prefetcher is not None:
            self._prefetcher.close()
        if isinstance(self.lanes, RemoteVirtualLanes):
            self.lanes.close()

    def _next(self, step0: int) -> LaneStep:
        if self._prefetcher is not None:
            return self._prefetcher.take(step0)[0]
        return self._make(step0)

    def _make(self, step0: int) -> LaneStep:
        first, size = self._rows.of(step0)
        rows = self.lanes.rows(first, size)
        numbers = [row for row in range(first, first + size) if row % self.lanes.num_lanes == self.lanes.lane]
        each = self._micro_batch_size
        microbatches = [
            self._microbatch(rows[at : at + each], numbers[at : at + each])
            for at in range(0, len(rows), each)
        ]
        chats = [chat for row in rows for chat in row.chats]
        return LaneStep(
            microbatches=microbatches,
            counts=Counts(
                rows=len(rows),
                chats=len(chats),
                tokens=sum(len(chat.ids) for chat in chats),
                valid_tokens=sum(int(np.count_nonzero(chat.trained[1:])) for chat in chats),
            ),
            work=sum(len(chat.ids) ** 2 for chat in chats),
            epochs=self.lanes.epochs,
            skipped=self.lanes.skipped,
            num_truncated=sum(chat.truncated for chat in chats),
            places=[
                {"row": number, "epoch": row.epoch, "records": [chat.place for chat in row.chats]}
                for number, row in zip(numbers, rows, strict=True)
            ],
            numbers=[(row.epoch, chat.number) for row in rows for chat in row.chats],
        )

    def _microbatch(self, rows: Sequence[EnergonRow], numbers: Sequence[int]) -> LaneMicrobatch:
        chats = [chat for row in rows for chat in row.chats]
        dataset = TokenizedDataset.of([c.ids for c in chats], [c.trained for c in chats])  # type: ignore[misc]
        ends = np.cumsum([len(row.chats) for row in rows]).tolist()
        held = [
            Row(number, row.epoch, tuple(range(end - len(row.chats), end)))
            for number, row, end in zip(numbers, rows, ends, strict=True)
        ]
        return build_microbatch(
            held,
            dataset,
            max_seq_length=self._data.settings.max_seq_length,
            pad_token_id=self._data.pad_token_id,
        )
