"""Records to rows, on the order of a whole epoch: before lanes, so that rows do not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rankloom.errors import UserError

__all__ = ["OPEN_ROWS", "PACKING_WINDOW", "PackedEpoch", "Packing", "pack_epoch", "packing_method"]

Ints: TypeAlias = NDArray[np.int64]
Packing: TypeAlias = Literal["first_fit_decreasing", "greedy", "none"]
METHODS: tuple[Packing, ...] = ("first_fit_decreasing", "greedy", "none")

# Measured on docstrings in rows of 512: 13.3 % padding with one open row, 1.7 % with 8, 1.4 % with 64.
OPEN_ROWS = 8
PACKING_WINDOW = 1024


def packing_method(packing: bool | str) -> Packing:
    """What a setting of ``data.packing`` means; true is greedy packing.

    >>> packing_method(True), packing_method(False), packing_method("first_fit_decreasing")
    ('greedy', 'none', 'first_fit_decreasing')
    """
    if isinstance(packing, bool):
        return "greedy" if packing else "none"
    if packing not in METHODS:
        raise UserError(f'data.packing is "{packing}"; use true, false, {", ".join(METHODS)}')
    return METHODS[METHODS.index(packing)]


class PackedEpoch:
    """The rows of an epoch, kept as two flat arrays: 8 bytes a record and 8 a row."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        sizes = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        self._ends = np.cumsum(sizes)
        self._records = np.fromiter((p for row in rows for p in row), dtype=np.int64, count=int(sizes.sum()))

    def __len__(self) -> int:
        return len(self._ends)

    def rows(self, start: int, stop: int) -> list[tuple[int, ...]]:
        """The records of rows ``start`` .. ``stop - 1``, cut off at the end of the epoch."""
        ends = self._ends[start:stop].tolist()
        first = int(self._ends[start - 1]) if start else 0
        starts = [first, *ends[:-1]]
        return [tuple(self._records[a:b].tolist()) for a, b in zip(starts, ends, strict=bool(ends))]

    def records(self, start: int, stop: int) -> Ints:
        """The records of these rows, one after the other."""
        ends = np.concatenate([[0], self._ends])
        return self._records[ends[start] : ends[min(stop, len(self))]]


def pack_epoch(
    lengths: Sequence[int] | Ints,
    order: Iterable[int],
    *,
    max_seq_length: int,
    packing: bool | str,
    window: int = PACKING_WINDOW,
) -> list[tuple[int, ...]]:
    """Rows of record positions. Every record is in exactly one row, near its place in ``order``, and the
    records of a row stand in that order.

    ``greedy`` (True): each record, taken in ``order``, goes to the earliest open row that has room for it,
    else to a new row; with `OPEN_ROWS` rows open the earliest is closed first. Lengths 3, 4, 2, 5, 1 and a
    ``max_seq_length`` of 8 give rows (0, 1, 4), (2, 3).

    ``first_fit_decreasing``: the next ``window`` records are taken together, the longest first, each into the
    first row of this window that has room (Dósa 2007: at most 11/9 of the fewest rows possible, and 6/9 of a
    row more). The rows then stand in the order of their first records: no sorting by length is left in
    the stream. The same lengths give (0, 3), (1, 2, 4).

    ``none`` (False): a row of its own for each record.

    Args:
        lengths: tokens of each record, none above ``max_seq_length``.
        order: record positions.
    """
    method = packing_method(packing)
    if method == "none":
        return [(int(position),) for position in order]
    if method == "greedy":
        return _greedy(lengths, order, max_seq_length)
    return list(_decreasing(lengths, order, max_seq_length, window))


def _greedy(
    lengths: Sequence[int] | Ints, order: Iterable[int], max_seq_length: int
) -> list[tuple[int, ...]]:
    closed: list[tuple[int, ...]] = []
    rows: list[list[int]] = []
    rooms: list[int] = []
    for position in order:
        length = int(lengths[position])
        assert length <= max_seq_length, "overlong records are dealt with before packing"
        place = next((place for place, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            if place == OPEN_ROWS:
                closed.append(tuple(rows.pop(0)))
                rooms.pop(0)
                place -= 1
            rows.append([])
            rooms.append(max_seq_length)
        rows[place].append(int(position))
        rooms[place] -= length
    return closed + [tuple(row) for row in rows]


def _decreasing(
    lengths: Sequence[int] | Ints, order: Iterable[int], max_seq_length: int, window: int
) -> Iterator[tuple[int, ...]]:
    remaining = iter(order)
    while records := list(islice(remaining, window)):
        yield from _decreasing_window([int(lengths[record]) for record in records], records, max_seq_length)


def _decreasing_window(
    lengths: Sequence[int], records: Sequence[int], max_seq_length: int
) -> Iterator[tuple[int, ...]]:
    """Places are those in the window, 0 .. len(records) - 1; equal lengths keep their order."""
    assert max(lengths) <= max_seq_length, "overlong records are dealt with before packing"
    rooms = np.full(len(records), max_seq_length, dtype=np.int64)  # of every row that may be needed
    rows: list[list[int]] = []
    for place in sorted(range(len(records)), key=lambda place: (-lengths[place], place)):
        number = int(np.argmax(rooms[: len(rows) + 1] >= lengths[place]))
        if number == len(rows):
            rows.append([])
        rows[number].append(place)
        rooms[number] -= lengths[place]
    for row in sorted(sorted(places) for places in rows):
        yield tuple(int(records[place]) for place in row)
