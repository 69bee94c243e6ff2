"""What one lane trains on: the rows dealt to it, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.dealing import Dealer
from rankloom.data.rows import Row
from rankloom.data.stream import GlobalStream
from rankloom.errors import RunError, UserError

__all__ = ["IGNORE", "LaneLoader", "LaneMicrobatch", "MicrobatchBuilder", "build_microbatch"]

IGNORE = -100

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class LaneMicrobatch:
    """One microbatch of one lane, whole rows; B rows of S tokens, int32.

    Attributes:
        input_ids: [B, S]; the padding token after the last record of a row.
        labels: [B, S]; labels[b, t] is the token that follows t in the same record, or IGNORE where that
            token is not trained, where the record ends, and in padding. Shifted already: the loss takes it as
            it is.
        position_ids: [B, S]; restart at 0 in every record and in the padding tail.
        document_ids: [B, S]; 0, 1, ... the records of a row; its padding tail is one document more.
        rows: the B rows these are.
    """

    input_ids: Ints
    labels: Ints
    position_ids: Ints
    document_ids: Ints
    rows: tuple[Row, ...]

    @property
    def real_lengths(self) -> Ints:
        """[B] tokens of each row before its padding."""
        num_documents = np.array([[len(row.records)] for row in self.rows])
        real: Ints = (self.document_ids < num_documents).sum(axis=1, dtype=np.int32)
        return real


@dataclass(frozen=True, eq=False)
class MicrobatchBuilder:
    """Rows of a dataset as arrays: all that a loader process needs to know."""

    dataset: TokenizedDataset
    max_seq_length: int
    pad_token_id: int
    lane: int

    def __call__(self, rounds: Sequence[Sequence[Row]]) -> list[LaneMicrobatch]:
        """A microbatch for each tuple of rows. Raises RunError naming the lane, and the record where there
        is one that cannot be read."""
        try:
            return [self._build(rows) for rows in rounds]
        except RunError:
            raise
        except Exception as error:  # of whatever stands between here and the disk
            raise RunError(f"lane {self.lane}: its rows cannot be read: {_reason(error)}") from error

    def _build(self, rows: Sequence[Row]) -> LaneMicrobatch:
        try:
            return build_microbatch(
                rows, self.dataset, max_seq_length=self.max_seq_length, pad_token_id=self.pad_token_id
            )
        except Exception:
            for record in (record for row in rows for record in row.records):
                self._try(record)
            raise

    def _try(self, record: int) -> None:
        """Finds out whether this record is the one at fault."""
        try:
            build_microbatch(
                [Row(0, 0, (record,))],
                self.dataset,
                max_seq_length=self.max_seq_length,
                pad_token_id=self.pad_token_id,
            )
        except Exception as error:
            name = self.dataset.record_name(record)
            raise RunError(f"lane {self.lane}: {name} cannot be read: {_reason(error)}") from error


class LaneLoader:
    """The microbatches of one lane for any step; it keeps no place, so a resumed run continues exactly.

    Args:
        stream: the global stream.
        dataset: the records the stream speaks of.
        lane: 0 .. num_lanes - 1.
        num_lanes: lanes of the layout.
        micro_batch_size: rows of a microbatch.
        pad_token_id: stands in the padding.
        balance: how rows are dealt, see `Dealer`.

    Raises:
        UserError: a global batch does not divide over the lanes.
    """

    def __init__(
        self,
        stream: GlobalStream,
        dataset: TokenizedDataset,
        *,
        lane: int,
        num_lanes: int,
        micro_batch_size: int,
        pad_token_id: int = 0,
        balance: str = "none",
    ) -> None:
        assert 0 <= lane < num_lanes
        per_round = num_lanes * micro_batch_size
        for size in stream.batch_sizes.all_sizes:
            if size % per_round:
                raise UserError(_does_not_divide(size, micro_batch_size=micro_batch_size, lanes=num_lanes))
        self.stream = stream
        self.lane = lane
        self.dealer = Dealer(
            num_lanes, micro_batch_size, dataset.lengths, "work" if balance == "work" else "none"
        )
        self.build = MicrobatchBuilder(dataset, stream.max_seq_length, pad_token_id, lane)

    @property
    def dataset(self) -> TokenizedDataset:
        return self.build.dataset

    @property
    def num_microbatches(self) -> int:
        """Of a step of the full global batch."""
        return self.stream.global_batch_size // self.dealer.rows_per_round

    def rows(self, step0: int) -> list[tuple[Row, ...]]:
        """The lane's rows of a step, counted from 0 over the whole run, a tuple a microbatch."""
        return self.dealer.lane(self.stream.batch(step0), self.lane)

    def step(self, step0: int) -> list[LaneMicrobatch]:
        """The lane's microbatches of a step."""
        return self.build(self.rows(step0))


def build_microbatch(
    rows: Sequence[Row], dataset: TokenizedDataset, *, max_seq_length: int, pad_token_id: int
) -> LaneMicrobatch:
    """Lays the records of each row side by side and shifts the labels inside each record."""
    shape = (len(rows), max_seq_length)
    input_ids = np.full(shape, pad_token_id, dtype=np.int32)
    labels = np.full(shape, IGNORE, dtype=np.int32)
    position_ids = np.zeros(shape, dtype=np.int32)
    document_ids = np.zeros(shape, dtype=np.int32)
    for place, row in enumerate(rows):
        start = 0
        for document, record in enumerate(row.records):
            ids, trained = dataset.ids(record), dataset.trained(record)
            end = start + len(ids)
            input_ids[place, start:end] = ids
            labels[place, start : end - 1] = np.where(trained[1:], ids[1:], IGNORE)
            position_ids[place, start:end] = np.arange(len(ids), dtype=np.int32)
            document_ids[place, start:end] = document
            start = end
        position_ids[place, start:] = np.arange(max_seq_length - start, dtype=np.int32)
        document_ids[place, start:] = len(row.records)
    return LaneMicrobatch(input_ids, labels, position_ids, document_ids, tuple(rows))


def _does_not_divide(size: int, *, micro_batch_size: int, lanes: int) -> str:
    per_round = lanes * micro_batch_size
    below = size // per_round * per_round
    return (
        f"train.global_batch_size {size} is not a multiple of train.micro_batch_size {micro_batch_size} x "
        f"{lanes} lanes = {per_round}; try {f'{below} or ' if below else ''}{below + per_round}"
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"[:300]
