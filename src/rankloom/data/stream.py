"""The global stream: which records make up row r of step s, from seed and data alone, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.packing import pack_epoch
from rankloom.errors import UserError

__all__ = ["FILLER", "Counts", "GlobalStream", "Row"]

LAST_BATCH = ("fill", "drop")
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


class GlobalStream:
    """The rows of every step of a run, by random access.

    Epoch e takes the records in the order of a permutation drawn from (seed, e), packs them, and cuts the
    rows into global batches; the last one is filled up with empty rows or dropped.

    Args:
        dataset: records that fit, see `TokenizedDataset.fitted`.
        max_seq_length: tokens of a row.
        packing: whether several records share a row.
        seed: of the permutations.
        global_batch_size: rows of a step.
        last_batch: "fill" or "drop".

    Raises:
        UserError: the first epoch would have no step.
    """

    def __init__(
        self,
        dataset: TokenizedDataset,
        *,
        max_seq_length: int,
        packing: bool,
        seed: int,
        global_batch_size: int,
        last_batch: str = "fill",
    ) -> None:
        if last_batch not in LAST_BATCH:
            raise UserError(f'data.last_batch is "{last_batch}"; use "fill" or "drop"')
        if global_batch_size < 1:
            raise UserError(f"train.global_batch_size is {global_batch_size}; use at least 1")
        self.dataset = dataset
        self.max_seq_length = max_seq_length
        self.packing = packing
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.last_batch = last_batch
        self._first_steps = [0]  # of each epoch known so far, and of the one after them
        self._first_rows = [0]
        self._packed: tuple[int, list[tuple[int, ...]]] = (-1, [])
        self.steps_per_epoch(0)

    def steps_per_epoch(self, epoch: int) -> int:
        """Optimizer steps of an epoch; with packing it can differ between epochs."""
        while len(self._first_steps) <= epoch + 1:
            self._add_epoch(len(self._first_steps) - 1)
        return self._first_steps[epoch + 1] - self._first_steps[epoch]

    def num_steps(self, epochs: int) -> int:
        """Optimizer steps of the first ``epochs`` epochs together."""
        return sum(self.steps_per_epoch(epoch) for epoch in range(epochs))

    def batch(self, step0: int) -> tuple[Row, ...]:
        """The ``global_batch_size`` rows of a step; steps count from 0 over the whole run."""
        epoch = self._epoch_of(step0)
        start = (step0 - self._first_steps[epoch]) * self.global_batch_size
        packed = self._rows(epoch)[start : start + self.global_batch_size]
        first_id = self._first_rows[epoch] + start
        rows = [Row(row_id=first_id + i, epoch=epoch, records=records) for i, records in enumerate(packed)]
        fillers = self.global_batch_size - len(rows)
        return tuple(rows) + (Row(row_id=FILLER, epoch=epoch, records=()),) * fillers

    def counts(self, step0: int) -> Counts:
        """What the global batch of a step holds, from lengths and masks alone."""
        return self.counts_of(self.batch(step0))

    def counts_of(self, rows: tuple[Row, ...]) -> Counts:
        """What some rows hold."""
        positions = np.array([position for row in rows for position in row.records], dtype=np.int64)
        return Counts(
            rows=sum(not row.is_filler for row in rows),
            chats=len(positions),
            tokens=int(self.dataset.lengths[positions].sum()),
            valid_tokens=int(self.dataset.valid[positions].sum()),
        )

    def settings(self) -> tuple[object, ...]:
        """What orders the rows besides the data, for comparing ranks."""
        return (self.max_seq_length, self.packing, self.seed, self.global_batch_size, self.last_batch)

    def describe(self) -> list[str]:
        """Facts for the log: rows, steps and padding of the first epoch, and what is left out."""
        rows = self._rows(0)
        steps = self.steps_per_epoch(0)
        used = rows[: steps * self.global_batch_size]
        tokens = self.counts_of(tuple(Row(row_id=0, epoch=0, records=records) for records in used)).tokens
        padding = 1 - tokens / (len(used) * self.max_seq_length)
        facts = [
            f"rows: {len(rows):,} of {self.max_seq_length:,} tokens in epoch 0, {padding:.1%} padding"
            f"{'' if self.packing else ' (packing is off)'}",
            f"steps: {steps:,} in epoch 0 with {self.global_batch_size:,} rows a step",
        ]
        missing = steps * self.global_batch_size - len(rows)
        if missing > 0:
            facts.append(f"last batch of epoch 0: {missing:,} of its rows are empty fillers")
        elif missing < 0:
            facts.append(f"last batch of epoch 0: dropped, with {-missing:,} rows")
        return facts

    def _epoch_of(self, step0: int) -> int:
        assert step0 >= 0
        while self._first_steps[-1] <= step0:
            self._add_epoch(len(self._first_steps) - 1)
        return int(np.searchsorted(self._first_steps, step0, side="right")) - 1

    def _add_epoch(self, epoch: int) -> None:
        num_rows = len(self._rows(epoch))
        steps = num_rows // self.global_batch_size
        if self.last_batch == "fill":
            steps = -(-num_rows // self.global_batch_size)
        if (
            steps == 0 and epoch == 0
        ):  # a later epoch may pack into a row less than a batch; it is passed over
            raise UserError(
                f"0 steps: epoch {epoch} has {num_rows} rows ({len(self.dataset)} records), fewer than "
                f"train.global_batch_size {self.global_batch_size}, and data.last_batch is drop; use "
                f"data.last_batch: fill, or a global batch of at most {num_rows}"
            )
        self._first_steps.append(self._first_steps[-1] + steps)
        self._first_rows.append(self._first_rows[-1] + min(num_rows, steps * self.global_batch_size))

    def _rows(self, epoch: int) -> list[tuple[int, ...]]:
        if self._packed[0] != epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
            order = generator.permutation(len(self.dataset)).tolist()
            rows = pack_epoch(
                self.dataset.lengths, order, max_seq_length=self.max_seq_length, packing=self.packing
            )
            self._packed = (epoch, rows)
        return self._packed[1]
