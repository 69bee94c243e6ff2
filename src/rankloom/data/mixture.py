"""Weighted mixtures: how often each record occurs in an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rankloom.errors import UserError
from rankloom.records.words import counted

__all__ = ["Mixture"]

MAX_PLACES = 10**8  # of one source in an epoch; the order of so many takes gigabytes
MIXTURE_STREAM = (1 << 40) + 1  # beside the epochs, which draw from (seed, epoch)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """Sources with weights: in an epoch a record of weight w occurs floor(w) or ceil(w) times.

    A source with n records and weight w has round(w·n·(e + 1)) - round(w·n·e) places in epoch e (halves are
    rounded up), and fills them by going round and round a permutation of its records drawn from (seed,
    source); epoch e + 1 continues where e ended. So over the first E epochs each of its records occurs
    floor(c / n) or ceil(c / n) times, c = round(w·n·E): with weight 1 once an epoch, with 0.5 once in two.

    Attributes:
        source_of_file: the source of each file; empty: one source of weight 1.
        weights: of each source, greater than 0.
    """

    source_of_file: tuple[int, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, source_of_file: Sequence[int], weights: Sequence[float]) -> Mixture:
        return cls(tuple(source_of_file), tuple(weights))

    @property
    def is_plain(self) -> bool:
        """Whether every record occurs once in every epoch."""
        return all(weight == 1 for weight in self.weights)

    def epoch(self, file_of: Ints, epoch: int, *, seed: int) -> Ints:
        """Positions of the records of an epoch, source after source; in order where all weights are 1.

        Args:
            file_of: [R] the file of each record.
        """
        if self.is_plain:
            return np.arange(len(file_of), dtype=np.int64)
        source_of = np.asarray(self.source_of_file, dtype=np.int64)[file_of]
        parts = [
            self._of_source(np.flatnonzero(source_of == source), source, epoch, seed)
            for source in range(len(self.weights))
        ]
        return np.concatenate(parts)

    def counts(self, file_of: Ints) -> list[tuple[int, float, int]]:
        """Of each source: its records, its weight, and its places in the first epoch."""
        source_of = np.asarray(self.source_of_file, dtype=np.int64)[file_of]
        sizes = np.bincount(source_of, minlength=len(self.weights)).tolist()
        return [
            (n, w, self._places(n, source, 0)[1])
            for source, (n, w) in enumerate(zip(sizes, self.weights, strict=True))
        ]

    def _places(self, num_records: int, source: int, epoch: int) -> tuple[int, int]:
        """Places of a source in all epochs before this one, and with it."""
        weight = Fraction(str(self.weights[source]))
        first, end = (math.floor(weight * num_records * e + Fraction(1, 2)) for e in (epoch, epoch + 1))
        return first, end

    def _of_source(self, positions: Ints, source: int, epoch: int, seed: int) -> Ints:
        num_records = len(positions)
        if num_records == 0:
            return positions
        first, end = self._places(num_records, source, epoch)
        if end - first > MAX_PLACES:
            raise UserError(
                f"data.train: a weight of {self.weights[source]:g} makes {end - first:,} of "
                f"{counted(num_records, 'record')} in an epoch, more than {MAX_PLACES:,}; use a smaller one, "
                "and more epochs"
            )
        generator = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence([seed, MIXTURE_STREAM, source]))
        )
        order = positions[generator.permutation(num_records)]
        places: Ints = np.sort(order[np.arange(first, end) % num_records])
        return places
