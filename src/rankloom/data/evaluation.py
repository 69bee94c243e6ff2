"""The rows of an evaluation: every validation record once, whatever the lanes and the evaluation batch."""

from __future__ import annotations

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.dealing import Dealer
from rankloom.data.lanes import MicrobatchBuilder
from rankloom.data.rows import Row
from rankloom.data.stream import GlobalStream

__all__ = ["EvaluationRows", "evaluation_stream"]


def evaluation_stream(
    dataset: TokenizedDataset,
    *,
    max_seq_length: int,
    packing: bool | str,
    packing_window: int,
    seed: int,
    batch_size: int,
) -> GlobalStream:
    """All rows of a validation set as one epoch of batches; the last batch is filled up. The settings are
    those of training, see `GlobalStream`."""
    return GlobalStream(
        dataset,
        max_seq_length=max_seq_length,
        packing=packing,
        packing_window=packing_window,
        seed=seed,
        global_batch_size=batch_size,
        last_batch="fill",
    )


class EvaluationRows:
    """What a lane evaluates, by batch. Of the last batch, microbatches in which no lane has a record are left
    out, on all lanes alike."""

    def __init__(self, stream: GlobalStream, *, dealer: Dealer, lane: int, pad_token_id: int) -> None:
        self.stream = stream
        self._dealer = dealer
        self._lane = lane
        self.build = MicrobatchBuilder(stream.dataset, stream.max_seq_length, pad_token_id, lane)

    @property
    def num_batches(self) -> int:
        return self.stream.steps_per_epoch(0)

    @property
    def num_rows(self) -> int:
        """Rows with records in them."""
        return sum(self.stream.counts(batch0).rows for batch0 in range(self.num_batches))

    @property
    def num_valid(self) -> int:
        """Tokens that enter the loss."""
        return int(self.stream.dataset.valid.sum())

    @property
    def num_records(self) -> int:
        return len(self.stream.dataset)

    @property
    def source(self) -> str:
        """What messages call the data."""
        return self.stream.dataset.source

    def num_microbatches(self) -> int:
        """Of all batches together, on each lane."""
        return sum(len(self.rows(batch0)) for batch0 in range(self.num_batches))

    def rows(self, batch0: int) -> list[tuple[Row, ...]]:
        """The lane's rows of a batch, a tuple a microbatch."""
        return self._dealer.lane(self.batch(batch0), self._lane)

    def batch(self, batch0: int) -> tuple[Row, ...]:
        """What all lanes together evaluate, in order."""
        batch = self.stream.batch(batch0)
        each = self._dealer.rows_per_round
        used = -(-sum(not row.is_filler for row in batch) // each) * each
        return batch[:used]
