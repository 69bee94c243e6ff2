"""What one lane trains on: the rows dealt to it, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.stream import GlobalStream, Row
from rankloom.errors import UserError

__all__ = ["IGNORE", "LaneLoader", "LaneMicrobatch", "build_microbatch", "deal"]

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


class LaneLoader:
    """The microbatches of one lane for any step; it keeps no place, so a resumed run continues exactly.

    Args:
        stream: the global stream.
        dataset: the records the stream speaks of.
        lane: 0 .. num_lanes - 1.
        num_lanes: lanes of the layout.
        micro_batch_size: rows of a microbatch.
        pad_token_id: stands in the padding.
        start_step: where iterating begins, from 0.

    Raises:
        UserError: the global batch does not divide over the lanes.
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
        start_step: int = 0,
    ) -> None:
        assert 0 <= lane < num_lanes
        per_round = num_lanes * micro_batch_size
        if stream.global_batch_size % per_round:
            below = stream.global_batch_size // per_round * per_round
            raise UserError(
                f"train.global_batch_size {stream.global_batch_size} is not a multiple of "
                f"train.micro_batch_size {micro_batch_size} x {num_lanes} lanes = {per_round}; "
                f"try {f'{below} or ' if below else ''}{below + per_round}"
            )
        self.stream = stream
        self.dataset = dataset
        self.lane = lane
        self.num_lanes = num_lanes
        self.micro_batch_size = micro_batch_size
        self.pad_token_id = pad_token_id
        self.start_step = start_step

    @property
    def num_microbatches(self) -> int:
        return self.stream.global_batch_size // (self.num_lanes * self.micro_batch_size)

    def step(self, step0: int) -> list[LaneMicrobatch]:
        """The lane's microbatches of a step, counted from 0 over the whole run."""
        dealt = deal(
            self.stream.batch(step0),
            lane=self.lane,
            num_lanes=self.num_lanes,
            micro_batch_size=self.micro_batch_size,
        )
        length = self.stream.max_seq_length
        return [
            build_microbatch(rows, self.dataset, max_seq_length=length, pad_token_id=self.pad_token_id)
            for rows in dealt
        ]

    def __iter__(self) -> Iterator[list[LaneMicrobatch]]:
        step0 = self.start_step
        while True:
            yield self.step(step0)
            step0 += 1


def deal(rows: Sequence[Row], *, lane: int, num_lanes: int, micro_batch_size: int) -> list[tuple[Row, ...]]:
    """A lane's rows of a global batch, a tuple a microbatch.

    Row r is in microbatch r // (num_lanes * micro_batch_size), in the lane
    (r % (num_lanes * micro_batch_size)) // micro_batch_size.
    """
    per_round = num_lanes * micro_batch_size
    first = lane * micro_batch_size
    return [
        tuple(rows[start + first : start + first + micro_batch_size])
        for start in range(0, len(rows), per_round)
    ]


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
