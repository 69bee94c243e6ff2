"""The ranks over the axes that a driver names, with the look-ups people know from NeMo-RL's NamedSharding."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import ArrayLike

from rankloom.layout import DRIVER_AXES, Driver, GTPParallelLayout
from rankloom.layout.axes import IntArray
from rankloom.layout.words import stretches_text

__all__ = ["NamedAxes"]


class NamedAxes:
    """Global ranks as an array with a name for each of its dimensions, outermost first; immutable.

    :meth:`of` a layout has the axes pipeline_parallel, data_parallel, context_parallel and tensor_parallel,
    where data_parallel is the lane and context_parallel the runtime context, whatever the rank order.

    >>> layout = GTPParallelLayout.resolve(
    ...     world_size=24, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    ... )
    >>> axes = NamedAxes.of(layout)
    >>> axes.shape
    {'pipeline_parallel': 1, 'data_parallel': 6, 'context_parallel': 1, 'tensor_parallel': 4}
    >>> axes.get_ranks_by_coord(data_parallel=2), axes.get_worker_coords(9)["data_parallel"]
    ([8, 9, 10, 11], 2)
    """

    def __init__(self, layout: ArrayLike, names: Sequence[str]) -> None:
        """``layout``: an array or nested lists of ranks, each once; a name for each dimension. Raises
        ValueError."""
        ranks = np.array(layout)
        _refuse_wrong_array(ranks, names)
        self._ranks: IntArray = ranks.astype(np.int64)
        self._ranks.flags.writeable = False
        self._names = tuple(names)
        self._places = {rank: place for place, rank in enumerate(self._ranks.reshape(-1).tolist())}
        self._parallel_layout: GTPParallelLayout | None = None

    @classmethod
    def of(cls, layout: GTPParallelLayout) -> NamedAxes:
        """The axes of all ranks of a layout: ``layout.driver_axes()`` over ``DRIVER_AXES``."""
        axes = cls(layout.driver_axes(), DRIVER_AXES)
        axes._parallel_layout = layout
        return axes

    @property
    def parallel_layout(self) -> GTPParallelLayout:
        """The layout whose ranks these are. Raises ValueError for axes made in another way than :meth:`of`, a
        slice among them."""
        if self._parallel_layout is None:
            raise ValueError(f"{self!r} are not the axes of a whole layout; make them with NamedAxes.of")
        return self._parallel_layout

    @property
    def driver(self) -> Driver:
        """The same as the describing half sees it."""
        return Driver("", self._names, self._ranks, "runtime")

    @property
    def shape(self) -> dict[str, int]:
        """The size of every axis by name."""
        return dict(zip(self._names, self._ranks.shape, strict=True))

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def ndim(self) -> int:
        return self._ranks.ndim

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._ranks.size

    @property
    def layout(self) -> IntArray:
        """The ranks, a copy."""
        return self._ranks.copy()

    def get_ranks(self, **coords: int) -> NamedAxes | int:
        """The ranks at these indices, over the axes that are not given; one rank where all are given.

        Raises ValueError for an axis and IndexError for an index that does not exist.
        """
        ranks = self._ranks[self._slices(coords)]
        left = [name for name in self._names if name not in coords]
        return NamedAxes(ranks, left) if left else int(ranks)

    def get_ranks_by_coord(self, **coords: int) -> list[int]:
        """The ranks at these indices, ascending; an axis that is not given matches all of its indices.

        Raises as :meth:`get_ranks` does: an index that does not exist is an error here too, not no ranks.
        """
        ranks: list[int] = np.sort(self._ranks[self._slices(coords)], axis=None).tolist()
        return ranks

    def get_worker_coords(self, worker_id: int) -> dict[str, int]:
        """The index of a rank on every axis, in constant time. Raises ValueError for a rank that is not
        there."""
        place = self._places.get(worker_id)
        if place is None:
            there = stretches_text(sorted(self._places))
            raise ValueError(f"rank {worker_id} is not there; the ranks are {there}")
        indices = np.unravel_index(place, self._ranks.shape)
        return {name: int(i) for name, i in zip(self._names, indices, strict=True)}

    def get_axis_index(self, name: str) -> int:
        """Which dimension an axis is. Raises ValueError for one that does not exist."""
        if name not in self._names:
            raise ValueError(f"there is no axis {name!r}; the axes are {self._said()}")
        return self._names.index(name)

    def get_axis_size(self, name: str) -> int:
        """How many indices an axis has. Raises ValueError for one that does not exist."""
        return int(self._ranks.shape[self.get_axis_index(name)])

    def _slices(self, coords: dict[str, int]) -> tuple[int | slice, ...]:
        slices: list[int | slice] = [slice(None)] * self.ndim
        for name, given in coords.items():
            size = self.get_axis_size(name)
            if not 0 <= index(given) < size:
                raise IndexError(
                    f"{name} has no index {given}: its size is {size}, so they are 0 to {size - 1}"
                )
            slices[self.get_axis_index(name)] = index(given)
        return tuple(slices)

    def _said(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.shape.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedAxes):
            return NotImplemented
        return self._names == other._names and np.array_equal(self._ranks, other._ranks)

    def __hash__(self) -> int:
        return hash((self._names, self._ranks.shape, self._ranks.tobytes()))

    def __repr__(self) -> str:
        return f"NamedAxes({self._said()}; ranks {stretches_text(sorted(self._places))})"


def _refuse_wrong_array(ranks: np.ndarray, names: Sequence[str]) -> None:
    if not np.issubdtype(ranks.dtype, np.integer):
        raise ValueError(f"ranks must be whole numbers, not {ranks.dtype}")
    if ranks.ndim != len(names):
        raise ValueError(f"{len(names)} names ({', '.join(names)}) for {ranks.ndim} dimensions")
    if len(set(names)) < len(names):
        raise ValueError(f"an axis comes twice: {', '.join(names)}")
    found, counts = np.unique(ranks, return_counts=True)
    if twice := found[counts > 1].tolist():
        raise ValueError(f"each rank can be there once; more than once: {stretches_text(twice)}")
