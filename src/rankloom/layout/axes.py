"""The six primitive axes, the two orders they may be numbered in, and the grid of ranks that results.

Words: an *axis* has a size; a *coordinate* is a rank's position on one axis; a *group* is the set of ranks
that differ only on the axes named. ``RANK_ORDERS`` lists axes from the innermost (fastest) outwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from rankloom.errors import UserError

AXES = ("tp", "gtp_seq", "gtp_batch", "cp", "dp", "pp")
DEFAULT_RANK_ORDER = "tp-gtp-cp-dp-pp"
RANK_ORDERS: dict[str, tuple[str, ...]] = {
    DEFAULT_RANK_ORDER: ("tp", "gtp_seq", "gtp_batch", "cp", "dp", "pp"),
    "tp-cp-gtp-dp-pp": ("tp", "gtp_seq", "cp", "gtp_batch", "dp", "pp"),
}

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """Ranks numbered over named axes: ``offset`` plus a mixed-radix number, ``axes[0]`` changing fastest.

    >>> grid = Grid(axes=("tp", "dp"), sizes=(2, 3), offset=0)
    >>> grid.groups(("dp",)).tolist()
    [[0, 2, 4], [1, 3, 5]]
    >>> grid.coordinates(5)
    {'tp': 1, 'dp': 2}
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    offset: int = 0

    @property
    def num_ranks(self) -> int:
        return prod(self.sizes)

    def size(self, axes: Iterable[str]) -> int:
        """The number of ranks in a group over these axes."""
        wanted = set(axes)
        return prod(size for axis, size in zip(self.axes, self.sizes, strict=True) if axis in wanted)

    def strides(self) -> dict[str, int]:
        """By how much the rank grows when the coordinate on an axis grows by one."""
        strides, stride = {}, 1
        for axis, size in zip(self.axes, self.sizes, strict=True):
            strides[axis] = stride
            stride *= size
        return strides

    def ranks(self) -> IntArray:
        """All ranks as an array with one dimension an axis, outermost first (the reverse of ``axes``)."""
        flat = np.arange(self.offset, self.offset + self.num_ranks, dtype=np.int64)
        return flat.reshape(self.sizes[::-1])

    def arranged(self, *axes: str) -> IntArray:
        """All ranks as an array whose dimensions are exactly these axes, in this order."""
        outermost_first = self.axes[::-1]
        return self.ranks().transpose([outermost_first.index(axis) for axis in axes])

    def groups(self, axes: Iterable[str]) -> IntArray:
        """All groups over these axes: [num_groups, ranks in a group], each ascending, rows by first rank."""
        wanted = set(axes)
        outermost_first = self.axes[::-1]
        fixed = [axis for axis in outermost_first if axis not in wanted]
        varying = [axis for axis in outermost_first if axis in wanted]
        return self.arranged(*fixed, *varying).reshape(-1, self.size(wanted))

    def group_of(self, rank: int, axes: Iterable[str]) -> tuple[int, ...]:
        """The group of one rank, ascending, without building the others."""
        coordinates, strides, wanted = self.coordinates(rank), self.strides(), set(axes)
        members = [rank]
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if axis in wanted:
                steps = [(i - coordinates[axis]) * strides[axis] for i in range(size)]
                members = [member + step for step in steps for member in members]
        return tuple(members)

    def rank_at(self, **coordinates: int) -> int:
        """The rank at these coordinates; axes not named are at 0."""
        strides = self.strides()
        return self.offset + sum(strides[axis] * coordinate for axis, coordinate in coordinates.items())

    def coordinates(self, rank: int) -> dict[str, int]:
        """The position of a rank on every axis. Raises UserError for a rank that is not in the grid."""
        number = rank - self.offset
        if not 0 <= number < self.num_ranks:
            last = self.offset + self.num_ranks - 1
            raise UserError(f"rank {rank} is not in this layout, which holds ranks {self.offset} to {last}")
        coordinates = {}
        for axis, size in zip(self.axes, self.sizes, strict=True):
            number, coordinates[axis] = divmod(number, size)
        return coordinates

    def coordinate_arrays(self) -> dict[str, IntArray]:
        """The coordinates of all ranks in rank order: for every axis an array of ``num_ranks``."""
        numbers = np.arange(self.num_ranks, dtype=np.int64)
        strides = self.strides()
        return {
            axis: numbers // strides[axis] % size for axis, size in zip(self.axes, self.sizes, strict=True)
        }
