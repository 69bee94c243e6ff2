"""The batches of a run on an Energon data set: a lane's owner makes its rows and tells what is in them."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rankloom.comm import Communicator, tell_all
from rankloom.config import ResolvedConfig
from rankloom.config.energon import ENERGON
from rankloom.data import Counts, LaneMicrobatch, Row
from rankloom.data.dealing import Imbalance, over_mean
from rankloom.data.energon.loading import EnergonLoader, LaneStep
from rankloom.data.energon.prepare import EnergonRunData
from rankloom.data.energon.state import EnergonState
from rankloom.data.facts import left_out_words
from rankloom.errors import RunError
from rankloom.train.batches import PlannedBatches, StepFacts, refuse_other_source

__all__ = ["EnergonBatches"]

NOTHING = (0.0,) * 6


class EnergonBatches:
    """Rows are numbered alike on all ranks; `loader` is there on the owner of a lane alone."""

    def __init__(
        self, resolved: ResolvedConfig, comm: Communicator, data: EnergonRunData, *, is_owner: bool
    ) -> None:
        self.lane = resolved.layout.lane(comm.rank)
        self._num_lanes = resolved.layout.batch_parallel_size
        self._micro_batch_size = resolved.train.micro_batch_size
        self._comm = comm
        self._data = data
        self._rows = data.rows
        self._facts: tuple[int, StepFacts] | None = None
        self._taken: dict[int, tuple[LaneStep, float]] = {}  # of the owner: the present step, and those ahead
        self._num_truncated = 0
        self.loader: EnergonLoader | None = None
        if is_owner:
            self.loader = EnergonLoader(
                data, lane=self.lane, num_lanes=self._num_lanes, micro_batch_size=self._micro_batch_size
            )

    @property
    def planned(self) -> PlannedBatches | None:
        return None

    def verify(self, step0: int) -> None:
        """Owners compare the samples of their first rows: two lanes that have one in the same epoch would
        train on the same data."""
        numbers = [] if self.loader is None else self.loader.look(step0).numbers
        world = self._comm["world"]
        longest = int(world.stack(self._tensor([len(numbers)]), "count the first samples").max().item())
        flat = [part for pair in numbers for part in pair] + [-1.0, -1.0] * (longest - len(numbers))
        told = world.stack(self._tensor(flat), "compare the first samples").view(len(world.ranks), -1, 2)
        first_rank: dict[tuple[int, int], int] = {}
        for rank, samples in zip(world.ranks, told.long().tolist(), strict=True):
            for epoch, sample in samples:
                if sample < 0:
                    continue
                other = first_rank.setdefault((epoch, sample), rank)
                if other != rank:
                    raise RunError(
                        f"ranks {other} and {rank} read for different lanes but both have sample {sample} of "
                        f"{self._data.source.name} in epoch {epoch}"
                    )

    def read_ahead(self, *, first: int, last: int) -> None:
        if self.loader is not None:
            self.loader.read_ahead(first=first, last=last)

    def rows(self, step0: int) -> Sequence[tuple[Row, ...]]:
        return self._rows.lane(
            step0, lane=self.lane, num_lanes=self._num_lanes, micro_batch_size=self._micro_batch_size
        )

    def facts(self, step0: int) -> StepFacts:
        if self._facts is None or self._facts[0] != step0:
            self._facts = (step0, self._gather(step0))
        return self._facts[1]

    def read(self, step0: int) -> tuple[Sequence[LaneMicrobatch | None], float]:
        if self.loader is None:
            return [None] * len(self.rows(step0)), 0.0
        step, wait_s = self._take(step0)
        return step.microbatches, wait_s

    def report(self, step0: int) -> list[list[dict[str, Any]]]:
        mine = [self.lane, self._taken[step0][0].places] if step0 in self._taken else None
        return [places for _, places in sorted(told for told in self._tell(mine) if told is not None)]

    def left_out(self) -> tuple[Mapping[str, int], str]:
        present = self._taken.get(self._facts[0]) if self._facts is not None else None
        mine = (dict(present[0].skipped) if present is not None else {}, self._num_truncated)
        skipped: Counter[str] = Counter()
        num_truncated = 0
        for lane_skipped, lane_truncated in self._tell(mine):
            skipped.update(lane_skipped)
            num_truncated += lane_truncated
        return skipped, left_out_words(skipped, num_truncated)

    def state(self, num_steps: int, consumed: Counts) -> dict[str, Any]:
        return EnergonState.shared_json(step=num_steps, consumed=consumed, settings=self._data.order)

    def lane_state(self, num_steps: int) -> dict[str, Any] | None:
        """Of the virtual lanes this rank owns."""
        if self.loader is None:
            return None
        return {str(number): state for number, state in self.loader.state(num_steps).items()}

    def restore(
        self, state: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], *, allowed: Sequence[str]
    ) -> tuple[str, ...]:
        refuse_other_source(state, ENERGON)
        saved = EnergonState.from_json({**state, "virtual_lanes": dict(ChainMap(*map(dict, lanes)))})
        saved.check(self._data.order)
        self._rows = self._rows.continued_from(step=saved.step, row=saved.consumed.rows)
        if self.loader is not None:
            self.loader.restore(saved)
        return ()

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()

    def _take(self, step0: int) -> tuple[LaneStep, float]:
        """On the owner: its rows of a step, any number of times until a later one is trained on."""
        if step0 not in self._taken:
            assert self.loader is not None
            self._taken[step0] = self.loader.take(step0)
        return self._taken[step0]

    def _gather(self, step0: int) -> StepFacts:
        mine: Sequence[float] = NOTHING
        if self.loader is not None:
            step, _ = self._take(step0)
            self._taken = {number: taken for number, taken in self._taken.items() if number >= step0}
            self._num_truncated += step.num_truncated
            mine = (*step.counts, step.work, step.epochs)
        told = self._comm["world"].stack(self._tensor(mine), "what is in the rows").tolist()
        owners = [values for values in told if any(values)]
        rows, chats, tokens, valid, _, epochs = (sum(column) for column in zip(*owners, strict=True))
        return StepFacts(
            num_rows=self._rows.of(step0)[1],
            counts=Counts(int(rows), int(chats), int(tokens), int(valid)),
            epochs=round(epochs / self._data.num_virtual_lanes, 9),
            dropped_rows=0,
            imbalance=Imbalance(
                work=over_mean([values[4] for values in owners]),
                tokens=over_mean([values[2] for values in owners]),
            ),
        )

    def _tell(self, mine: object) -> list[Any]:
        """What every rank says."""
        return tell_all(self._comm["world"], mine, "what there is to tell", device=self._comm.device)

    def _tensor(self, values: Sequence[float]) -> torch.Tensor:
        """Whole numbers are exact in it up to 2^53."""
        return torch.tensor(values, dtype=torch.float64, device=self._comm.device)
