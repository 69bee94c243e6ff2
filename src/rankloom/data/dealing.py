"""Which lane trains on which rows of a step. Which rows a step has is settled before, by the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rankloom.data.rows import Row

__all__ = ["Dealer", "Imbalance", "over_mean"]

Rounds: TypeAlias = list[tuple[Row, ...]]  # the rows of a lane, a tuple a microbatch


@dataclass(frozen=True)
class Imbalance:
    """The largest lane's share of a step over the mean lane's: 1.0 is even.

    ``work``: sum over its records of length^2, as causal attention costs; ``tokens``: without padding.
    """

    work: float
    tokens: float


@dataclass(frozen=True, eq=False)
class Dealer:
    """Deals the rows of a step to ``num_lanes`` lanes, ``micro_batch_size`` rows a lane and microbatch.

    ``balance`` "none": row r is in microbatch r // (num_lanes * micro_batch_size), in the lane
    (r % (num_lanes * micro_batch_size)) // micro_batch_size.

    "work": the rows are taken from the one with most work to the one with least, each by the lane with the
    least work so far that has room (Graham 1969, longest processing time first), and stand in a lane in that
    order, since the lanes of a gather group go through their microbatches together. Equal ones keep their
    order, so the outcome depends on the rows alone.

    ``lengths``: tokens of each record of the dataset, [R].
    """

    num_lanes: int
    micro_batch_size: int
    lengths: NDArray[np.int64]
    balance: Literal["none", "work"] = "none"

    @property
    def rows_per_round(self) -> int:
        return self.num_lanes * self.micro_batch_size

    def lanes(self, rows: Sequence[Row]) -> list[Rounds]:
        """All rows, by lane."""
        assert len(rows) % self.rows_per_round == 0, "the batch arithmetic refuses what does not divide"
        if self.balance == "work":
            rows = self._interleaved(self._shares(rows))
        size, each = self.micro_batch_size, self.rows_per_round
        return [
            [tuple(rows[at : at + size]) for at in range(lane * size, len(rows), each)]
            for lane in range(self.num_lanes)
        ]

    def lane(self, rows: Sequence[Row], lane: int) -> Rounds:
        """The rows of one lane."""
        return self.lanes(rows)[lane]

    def work(self, rows: Sequence[Row]) -> list[int]:
        """Of each row, the sum over its records of length^2."""
        return _row_sums(rows, self._lengths(rows) ** 2)

    def imbalance(self, rows: Sequence[Row]) -> Imbalance:
        """Of the rows of one step."""
        lanes = [[row for microbatch in lane for row in microbatch] for lane in self.lanes(rows)]
        work = [sum(self.work(lane)) for lane in lanes]
        tokens = [int(self._lengths(lane).sum()) for lane in lanes]
        return Imbalance(over_mean(work), over_mean(tokens))

    def _lengths(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """Of the records of these rows, one after the other."""
        records = np.array([record for row in rows for record in row.records], dtype=np.int64)
        return self.lengths[records]

    def _shares(self, rows: Sequence[Row]) -> list[list[Row]]:
        room = len(rows) // self.num_lanes
        shares: list[list[Row]] = [[] for _ in range(self.num_lanes)]
        sums = [0] * self.num_lanes
        work = self.work(rows)
        for place in sorted(range(len(rows)), key=lambda place: (-work[place], place)):
            lane = min((k for k, s in enumerate(shares) if len(s) < room), key=lambda k: (sums[k], k))
            shares[lane].append(rows[place])
            sums[lane] += work[place]
        return shares

    def _interleaved(self, shares: list[list[Row]]) -> list[Row]:
        """The order of rows in which plain dealing gives each lane its share."""
        size = self.micro_batch_size
        return [
            row for at in range(0, len(shares[0]), size) for share in shares for row in share[at : at + size]
        ]


def _row_sums(rows: Sequence[Row], values: NDArray[np.int64]) -> list[int]:
    """Of each row, the sum of the values of its records."""
    ends = np.cumsum([len(row.records) for row in rows])
    sums = np.concatenate([[0], np.cumsum(values)])[ends]
    found: list[int] = np.diff(sums, prepend=0).tolist()
    return found


def over_mean(values: Sequence[float]) -> float:
    """The largest over the mean; 1.0 where there is nothing."""
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
