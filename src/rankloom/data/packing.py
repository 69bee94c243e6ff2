"""Records to rows: greedy packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack_epoch"]


def pack_epoch(
    lengths: Sequence[int] | NDArray[np.int64], order: Iterable[int], *, max_seq_length: int, packing: bool
) -> list[tuple[int, ...]]:
    """Rows of record positions: ``order`` cut where the next record no longer fits.

    Every record of ``order`` is in exactly one row, and the rows read one after the other are ``order`` again.
    Lengths 3, 4, 2, 5 and a ``max_seq_length`` of 8 give rows (0, 1), (2, 3).

    Args:
        lengths: tokens of each record, none above ``max_seq_length``.
        order: record positions.
        packing: False gives each record a row of its own.
    """
    if not packing:
        return [(int(position),) for position in order]
    rows: list[tuple[int, ...]] = []
    row: list[int] = []
    room = max_seq_length
    for position in order:
        length = int(lengths[position])
        assert length <= max_seq_length, "overlong records are dealt with before packing"
        if length > room:
            rows.append(tuple(row))
            row, room = [], max_seq_length
        row.append(int(position))
        room -= length
    if row:
        rows.append(tuple(row))
    return rows
