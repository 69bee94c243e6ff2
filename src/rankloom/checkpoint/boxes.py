"""Which boxes of which parameters a rank writes, computed from the plan alone; and boxes inside boxes.

flat range   elements [start, stop) of a shard, row after row; what an optimizer piece holds of a parameter
flat box     a box of the logical parameter whose elements, row after row, lie together in a flat range

A flat range of a matrix is at most three flat boxes: the rest of a row, whole rows, the start of a row.

    shard of 4 x 5     . . . . .
    range [8, 17)      . . . a a
                       b b b b b
                       c c . . .
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rankloom.layout import GTPParallelLayout
from rankloom.plan import Box, FlatUnit, ModelPlan, PieceRange, Placement

__all__ = [
    "FlatBox",
    "WriterPlace",
    "flat_boxes",
    "inside",
    "intersection",
    "part_boxes",
    "piece_index",
    "written_boxes",
]


@dataclass(frozen=True)
class FlatBox:
    """``box`` of a logical parameter; its elements are [offset, offset + box.num_elements) of a flat
    range."""

    box: Box
    offset: int


@dataclass(frozen=True)
class WriterPlace:
    """Where a rank stands among those that store parts of a parameter."""

    tp: int
    weight_shard: int

    @classmethod
    def of(cls, layout: GTPParallelLayout, rank: int) -> WriterPlace:
        at = layout.coords(rank)
        return cls(at.tp, at.weight_shard)

    def shard_box(self, placement: Placement) -> Box:
        """Logical indices behind what the rank stores of it; its rows come first, padding after them."""
        return placement.box(self.tp, self.weight_shard if placement.sharded else 0)

    def writes(self, placement: Placement) -> bool:
        """Whether the rank writes its optimizer piece: of what every TP rank holds alike, the first one's is
        enough."""
        return placement.tp_dim is not None or self.tp == 0


def flat_boxes(shard: Box, start: int, stop: int) -> tuple[FlatBox, ...]:
    """The boxes of elements [start, stop) of the shard at ``shard``, whose last rows may be padding: what
    lies past its logical rows is in no box."""
    stop = min(stop, shard.num_elements)
    if start >= stop:
        return ()
    if len(shard.starts) == 1:
        origin = shard.starts[0]
        return (FlatBox(Box((origin + start,), (origin + stop,)), 0),)
    cols = shard.shape[1]
    cuts = [start, min(stop, -(-start // cols) * cols), max(start, stop // cols * cols), stop]
    if cuts[1] > cuts[2]:  # inside one row
        cuts = [start, stop]
    return tuple(
        FlatBox(_rectangle(shard, low, high), low - start) for low, high in pairwise(cuts) if low < high
    )


def _rectangle(shard: Box, start: int, stop: int) -> Box:
    """The box of a range that is whole rows, or lies inside one row."""
    cols = shard.shape[1]
    row, col = divmod(start, cols)
    rows = -(-stop // cols) - row
    width = cols if rows > 1 else stop - start
    top, left = shard.starts[0] + row, shard.starts[1] + col
    return Box((top, left), (top + rows, left + width))


def intersection(a: Box, b: Box) -> Box | None:
    """What two boxes of one parameter share; None where that is nothing."""
    starts = tuple(map(max, a.starts, b.starts))
    stops = tuple(map(min, a.stops, b.stops))
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    return Box(starts, stops)


def inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where ``box`` lies in a tensor that holds ``outer``."""
    return tuple(
        slice(start - origin, stop - origin)
        for start, stop, origin in zip(box.starts, box.stops, outer.starts, strict=True)
    )


def piece_index(plan: ModelPlan, unit: FlatUnit, rank: int) -> int:
    """Which piece of the unit's optimizer state a rank owns."""
    axes = "gtp_remat_replica" if unit is plan.small else "replica"
    return plan.layout.weights.place_of(rank, axes)


def part_boxes(unit: FlatUnit, part: PieceRange, place: WriterPlace) -> tuple[FlatBox, ...]:
    """The boxes of the elements of a part, without padding."""
    origin = unit.offsets[part.placement.name]
    return flat_boxes(place.shard_box(part.placement), part.start - origin, part.stop - origin)


def written_boxes(plan: ModelPlan, rank: int) -> Iterator[tuple[str, FlatBox]]:
    """(parameter, box) of all that ``rank`` writes, in the order of its pieces. Over all ranks every element
    of every parameter is in exactly one of them."""
    place = WriterPlace.of(plan.layout, rank)
    for unit in plan.units:
        for part in unit.piece(piece_index(plan, unit, rank)):
            if place.writes(part.placement):
                for flat in part_boxes(unit, part, place):
                    yield part.placement.name, flat
