"""A driver's own idea of the ranks, and whether its data axis is the trainer's lanes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from rankloom.errors import UserError
from rankloom.layout.axes import RANK_ORDERS, IntArray
from rankloom.layout.driver_mistakes import find_mistake
from rankloom.layout.driver_words import (
    DATA,
    DRIVER_AXES,
    GTP,
    CpIs,
    cp_is,
    read_axes,
)
from rankloom.layout.gtp import GTPParallelLayout
from rankloom.layout.words import stretches_text

__all__ = ["Driver", "DriverOutcome", "compare_driver", "right_expression"]

MAX_LANES_SHOWN = 8
_PRIMITIVES = ("pp", "dp", "gtp_batch", "cp", "gtp_seq", "tp")


@dataclass(frozen=True, eq=False)
class Driver:
    """The global ranks over the axes a driver names, outermost first: one dimension of ``ranks`` an axis.

    >>> layout = GTPParallelLayout.resolve(
    ...     world_size=24, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    ... )
    >>> Driver.parse("pp,-1,cp,tp", layout).sizes
    {'pipeline_parallel': 1, 'data_parallel': 6, 'context_parallel': 1, 'tensor_parallel': 4}
    """

    spelling: str
    names: tuple[str, ...]
    ranks: IntArray
    cp_is: CpIs

    @classmethod
    def parse(cls, spelling: str, layout: GTPParallelLayout) -> Driver:
        """A reshape of the layout's rank numbers, outermost axis first.

        Either words and numbers, ``pp,-1,cp,tp`` (also inside ``reshape(...)``), or axes with sizes,
        ``pipeline_parallel=1,data_parallel=-1,context_parallel=runtime_cp,tensor_parallel=4``. ``cp`` is the
        configured degree, ``runtime_cp`` the runtime one, ``gtp`` GTP_remat, ``dp`` data_parallel_size and
        ``-1`` whatever is left, which is the data axis. Raises UserError as
        :func:`~rankloom.layout.driver_words.read_axes` does.
        """
        axes = read_axes(spelling, layout)
        numbers = np.arange(layout.ranks.start, layout.ranks.stop, dtype=np.int64)
        names = tuple(axis.name for axis in axes)
        return cls(spelling, names, numbers.reshape([axis.size or 1 for axis in axes]), cp_is(axes))

    @classmethod
    def of_layout(cls, layout: GTPParallelLayout) -> Driver:
        """The right axes: ``layout.driver_axes()`` over ``DRIVER_AXES``."""
        return cls("", DRIVER_AXES, layout.driver_axes(), "runtime")

    @property
    def called(self) -> str:
        """ "the driver pp,-1,cp,tp", or that it is the layout itself."""
        return f"the driver {self.spelling}" if self.spelling else "the layout's own driver"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every axis, outermost first."""
        return dict(zip(self.names, self.ranks.shape, strict=True))

    def size(self, names: tuple[str, ...]) -> int:
        """How many pieces these axes have together."""
        return prod(self.sizes[name] for name in names)

    def index(self, names: tuple[str, ...]) -> IntArray:
        """For each rank, ascending, its row-major index over these axes, taken in the driver's own order."""
        number = np.zeros(self.ranks.shape, dtype=np.int64)
        for dim, (name, size) in enumerate(self.sizes.items()):
            if name in names:
                shape = [size if other == dim else 1 for other in range(self.ranks.ndim)]
                number = number * size + np.arange(size).reshape(shape)
        return np.asarray(number.reshape(-1)[np.argsort(self.ranks, axis=None)])

    def describe(self) -> str:
        """ "pp,-1,cp,tp (pipeline_parallel 1, data_parallel 6, context_parallel 1, tensor_parallel 4)"."""
        return f"{self.spelling} ({', '.join(f'{name} {size}' for name, size in self.sizes.items())})"


@dataclass(frozen=True, eq=False)
class DriverOutcome:
    """A driver's data axis beside the trainer's lanes.

    ``lanes_are``: the axes whose row-major index is the lane, () if there are none. ``num_driver_lanes``: how
    many pieces the axes compared have. ``wrong_ranks``: global ranks that stand in another piece than their
    lane, all of them, with ``right_lanes`` and ``driver_lanes`` beside. ``mistake``: one sentence that says
    what went wrong, "" where nothing did or nobody can tell. ``right_axes``: a numpy expression of the right
    array, with comments that show its axes and lanes.
    """

    driver: Driver
    num_lanes: int
    num_driver_lanes: int
    lanes_are: tuple[str, ...]
    wrong_ranks: tuple[int, ...]
    right_lanes: tuple[int, ...]
    driver_lanes: tuple[int, ...]
    mistake: str
    right_axes: str

    @property
    def agrees(self) -> bool:
        """Whether some axes of the driver are the lanes: data_parallel, alone or together with gtp."""
        return bool(self.lanes_are)

    def describe(self, *, limit: int = 3) -> str:
        """One or two sentences: agreement, or how many ranks are wrong, the first few, and the mistake."""
        if self.agrees:
            axes, both = " x ".join(self.lanes_are), " and ".join(self.lanes_are)
            more = f"; a call has to split {both} together" if len(self.lanes_are) > 1 else ""
            return f"driver {self.driver.spelling}: {axes} is the {self.num_lanes} lanes{more}"
        rows = zip(self.wrong_ranks, self.driver_lanes, self.right_lanes, strict=True)
        shown = [f"rank {rank} in lane {given} instead of {right}" for rank, given, right in rows][:limit]
        counts = (
            ""
            if self.num_lanes == self.num_driver_lanes
            else f" and counts {self.num_driver_lanes} lanes instead of {self.num_lanes}"
        )
        more = ", ..." if len(self.wrong_ranks) > limit else ""
        text = (
            f"driver {self.driver.spelling} puts {len(self.wrong_ranks)} of {self.driver.ranks.size} ranks"
            f" in the wrong lane{counts}: {', '.join(shown)}{more}"
        )
        return f"{text}; {self.mistake}" if self.mistake else text


def compare_driver(driver: Driver, layout: GTPParallelLayout) -> DriverOutcome:
    """Rank by rank: is the index on the driver's data axis (or on data and gtp together) the lane?

    A plain reshape on the runtime CP is wrong exactly when CP > 1 and B > 1 in ``tp-gtp-cp-dp-pp``, and never
    in ``tp-cp-gtp-dp-pp``. On the configured CP and S > 1 it counts S times too many lanes in either order.
    """
    right = layout.coord_arrays()["lane"]
    lanes_are = _lanes_are(driver, layout)
    axes = lanes_are or _nearest_axes(driver, layout)
    given = driver.index(axes)
    wrong = np.flatnonzero(given != right)
    return DriverOutcome(
        driver=driver,
        num_lanes=layout.batch_parallel_size,
        num_driver_lanes=driver.size(axes),
        lanes_are=lanes_are,
        wrong_ranks=tuple((wrong + layout.rank_offset).tolist()),
        right_lanes=tuple(right[wrong].tolist()),
        driver_lanes=tuple(given[wrong].tolist()),
        mistake=""
        if lanes_are
        else find_mistake(driver.spelling, driver.sizes, driver.cp_is, layout, suffices=_suffices),
        right_axes=_right_axes(layout),
    )


def _candidates(driver: Driver) -> list[tuple[str, ...]]:
    """Axes that can be the lanes: data alone or, where the driver has a gtp axis, both together."""
    both = tuple(name for name in driver.names if name in (DATA, GTP))
    return [(DATA,), both] if driver.sizes.get(GTP, 1) > 1 else [(DATA,)]


def _lanes_are(driver: Driver, layout: GTPParallelLayout) -> tuple[str, ...]:
    """The axes of which the index is the lane of every rank, () if there are none."""
    lanes = layout.coord_arrays()["lane"]
    equal = (names for names in _candidates(driver) if np.array_equal(driver.index(names), lanes))
    return next(equal, ())


def _nearest_axes(driver: Driver, layout: GTPParallelLayout) -> tuple[str, ...]:
    """Where no axes are the lanes: those of the right number tell more than the data axis alone."""
    candidates = _candidates(driver)
    right = (names for names in candidates if driver.size(names) == layout.batch_parallel_size)
    return next(right, candidates[0])


def _suffices(spelling: str, layout: GTPParallelLayout) -> bool:
    try:
        return bool(_lanes_are(Driver.parse(spelling, layout), layout))
    except UserError:
        return False


def right_expression(layout: GTPParallelLayout) -> str:
    """``layout.driver_axes()`` as a numpy expression: the ranks over all six axes, then in lane order."""
    outermost_first = RANK_ORDERS[layout.rank_order][::-1]
    sizes = layout.axis_sizes
    start = f"{layout.rank_offset}, " if layout.rank_offset else ""
    cut = ", ".join(str(sizes[axis]) for axis in outermost_first)
    turn = ", ".join(str(outermost_first.index(axis)) for axis in _PRIMITIVES)
    joined = ", ".join(map(str, layout.driver_axes().shape))
    return f"np.arange({start}{layout.ranks.stop}).reshape({cut}).transpose({turn}).reshape({joined})"


def _right_axes(layout: GTPParallelLayout) -> str:
    array = layout.driver_axes()
    axes = ", ".join(f"{name} {size}" for name, size in zip(DRIVER_AXES, array.shape, strict=True))
    lines = [right_expression(layout), f"# {axes}"]
    num_lanes = array.shape[1]
    shown = list(range(num_lanes)) if num_lanes <= MAX_LANES_SHOWN else [0, 1, 2, num_lanes - 1]
    for lane in shown:
        if lane and lane - 1 not in shown:
            lines.append("# ...")
        ranks = np.sort(array[:, lane], axis=None).tolist()
        lines.append(f"# lane {lane}: rank{'s' * (len(ranks) > 1)} {stretches_text(ranks)}")
    return "\n".join(lines)
