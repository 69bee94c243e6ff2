"""Which keys each query of this rank may see: a list of rectangles, worked out once a microbatch.

A packed row holds documents one after the other. A *segment* is a run of local queries that lie in one
document and in one chunk of the row; its keys start where the document starts and end where the segment ends.
Padding at the end of a row is a document of its own, so every query has at least its own key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankloom.context.slices import ContextSlices

__all__ = ["Segment", "segments_of_row"]


@dataclass(frozen=True)
class Segment:
    """Local queries [query_start, query_stop) against keys [key_start, key_stop) of the whole row; the last
    query and the last key are the same token."""

    query_start: int
    query_stop: int
    key_start: int
    key_stop: int

    @property
    def num_queries(self) -> int:
        return self.query_stop - self.query_start

    @property
    def num_keys(self) -> int:
        return self.key_stop - self.key_start


def segments_of_row(
    document_ids: npt.NDArray[np.int32], slices: ContextSlices, *, rank: int
) -> list[Segment]:
    """Segments of one row in the order of the local queries; ``document_ids`` [S] of the whole row,
    ascending."""
    borders = np.flatnonzero(np.diff(document_ids)) + 1
    starts = np.concatenate([[0], borders])
    stops = np.concatenate([borders, [len(document_ids)]])
    return list(_segments(starts, stops, slices.chunks(rank)))


def _segments(
    starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], chunks: tuple[tuple[int, int], ...]
) -> Iterator[Segment]:
    at = 0
    for a, b in chunks:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            low, high = max(a, start), min(b, stop)
            if low < high:
                yield Segment(at, at + high - low, start, high)
                at += high - low
