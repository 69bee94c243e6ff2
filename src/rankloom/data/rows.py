"""Rows, what they hold, and places in the stream of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FILLER", "Counts", "Position", "Row"]

FILLER = -1  # row_id of a row without records


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a global batch.

    Attributes:
        row_id: number of the row in the run, from 0, fillers and dropped rows not counted; -1 for a filler.
        epoch: from 0.
        records: positions of the records in it, in order; empty for a filler.
    """

    row_id: int
    epoch: int
    records: tuple[int, ...]

    @property
    def is_filler(self) -> bool:
        return not self.records


class Counts(NamedTuple):
    """What a batch holds: rows (no fillers), records, tokens (no padding), labels that enter the loss."""

    rows: int
    chats: int
    tokens: int
    valid_tokens: int


class Position(NamedTuple):
    """A place in the stream: after ``step`` optimizer steps that trained on ``rows`` rows, row ``row`` of
    epoch ``epoch`` is next. That may be one past its last: then the next epoch's first row is."""

    step: int = 0
    epoch: int = 0
    row: int = 0
    rows: int = 0
