"""The global stream: which records make up row r of step s, from seed and data alone, whatever the layout."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_right
from functools import cached_property

import numpy as np

from rankloom.config.rampup import BatchSizes
from rankloom.data.dataset import TokenizedDataset
from rankloom.data.dataset_identity import DatasetIdentity
from rankloom.data.epochs import EpochSteps
from rankloom.data.packing import PACKING_WINDOW, PackedEpoch, pack_epoch, packing_method
from rankloom.data.rows import FILLER, Counts, Position, Row
from rankloom.errors import UserError
from rankloom.records.words import counted

__all__ = ["FILLER", "Counts", "GlobalStream", "Position", "Row"]

LAST_BATCH = ("fill", "drop")
KEPT_EPOCHS = 2  # packed: at the border of two, the loader is in the next one already
MAX_EPOCHS_WITHOUT_STEPS = 16


class GlobalStream:
    """The rows of every step of a run, by random access. Threads may share one.

    Epoch e takes the records in the order of a permutation drawn from (seed, e), packs them, and cuts the
    rows into global batches; the last one is filled up with empty rows or dropped.

    Args:
        dataset: records that fit, see `TokenizedDataset.fitted`.
        max_seq_length: tokens of a row.
        packing: how records share a row, see `pack_epoch`.
        packing_window: records that first_fit_decreasing takes together.
        seed: of the permutations.
        global_batch_size: rows of a step; at the end of ``rampup``.
        rampup: START, INCREMENT, SAMPLES, see `BatchSizes`.
        last_batch: "fill" or "drop".

    Raises:
        UserError: the first epoch would have no step.
    """

    def __init__(
        self,
        dataset: TokenizedDataset,
        *,
        max_seq_length: int,
        packing: bool | str,
        seed: int,
        global_batch_size: int,
        last_batch: str = "fill",
        packing_window: int = PACKING_WINDOW,
        rampup: tuple[int, int, int] | None = None,
    ) -> None:
        if last_batch not in LAST_BATCH:
            raise UserError(f'data.last_batch is "{last_batch}"; use "fill" or "drop"')
        if global_batch_size < 1:
            raise UserError(f"train.global_batch_size is {global_batch_size}; use at least 1")
        self.dataset = dataset
        self.max_seq_length = max_seq_length
        self.packing = packing_method(packing)
        self.packing_window = packing_window
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.batch_sizes = BatchSizes(global_batch_size, rampup)
        self.last_batch = last_batch
        self._lock = threading.RLock()
        self._packed: dict[int, PackedEpoch] = {}
        self._begin(Position())

    def _begin(self, origin: Position) -> None:
        self.origin = origin
        self._epochs: list[EpochSteps] = []  # known so far, from that of the origin on
        self._end_of(origin.epoch)

    def continued_from(self, origin: Position) -> GlobalStream:
        """The same order from a place in it, whatever global batches led there. Steps before are not known
        to it."""
        other = copy.copy(self)
        other._lock, other._packed = threading.RLock(), {}
        other._begin(origin)
        return other

    def steps_per_epoch(self, epoch: int) -> int:
        """Optimizer steps of an epoch (from the origin on); with packing it can differ between epochs."""
        return self._end_of(epoch).num_steps

    def num_steps(self, epochs: int) -> int:
        """Optimizer steps of the run until ``epochs`` epochs are over."""
        if epochs <= self.origin.epoch:
            return self.origin.step if epochs else 0
        last = self._end_of(epochs - 1)
        return last.first_step + last.num_steps

    def batch(self, step0: int) -> tuple[Row, ...]:
        """The rows of a step; steps count from 0 over the whole run."""
        epoch = self._epoch_of(step0)
        start, size = epoch.batch(step0)
        packed = self._rows(epoch.epoch).rows(start, start + size)
        first_id = epoch.row_id(start)
        rows = [Row(first_id + i, epoch.epoch, records) for i, records in enumerate(packed)]
        fillers = size - len(rows)
        return tuple(rows) + (Row(row_id=FILLER, epoch=epoch.epoch, records=()),) * fillers

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

    def position_after(self, step0: int) -> Position:
        """Where the stream stands once a step is done: what a continued run begins from."""
        epoch = self._epoch_of(step0)
        start, size = epoch.batch(step0)
        row = min(start + size, epoch.num_rows)
        return Position(step=step0 + 1, epoch=epoch.epoch, row=row, rows=epoch.row_id(row))

    def epochs_after(self, step0: int) -> float:
        """Epochs trained on once a step is done; whole at the last step of an epoch, dropped rows or not."""
        epoch = self._epoch_of(step0)
        row = self.position_after(step0).row
        is_last = step0 == epoch.first_step + epoch.num_steps - 1
        return epoch.epoch + (1.0 if is_last else row / epoch.num_rows)

    def dropped_after(self, step0: int) -> int:
        """Rows that are left out between a step and the next one: those of a dropped last batch."""
        epoch = self._epoch_of(step0)
        if self.last_batch == "fill" or step0 < epoch.first_step + epoch.num_steps - 1:
            return 0
        following = self._epoch_of(step0 + 1)
        known = self._epochs[epoch.epoch - self.origin.epoch : following.epoch - self.origin.epoch]
        return sum(passed.num_dropped for passed in known)

    def tokens_through(self, num_steps: int) -> int:
        """Tokens, without padding, of the run's steps from the origin to ``num_steps``."""
        total = 0
        while num_steps > self.origin.step:
            epoch = self._epoch_of(num_steps - 1)
            start, size = epoch.batch(num_steps - 1)
            records = self._rows(epoch.epoch).records(epoch.first_row, start + size)
            total += int(self.dataset.lengths[records].sum())
            num_steps = epoch.first_step
        return total

    @cached_property
    def dataset_identity(self) -> DatasetIdentity:
        """Of the records; reads as much as there are of them, once."""
        return DatasetIdentity.of(self.dataset)

    def order(self) -> dict[str, object]:
        """The settings that, with the data, decide the rows and their order."""
        return {
            "data.max_seq_length": self.max_seq_length,
            "data.packing": self.packing,
            "data.packing_window": self.packing_window if self.packing == "first_fit_decreasing" else None,
            "data.seed": self.seed,
        }

    def batches(self) -> dict[str, object]:
        """The settings that decide how rows are cut into global batches."""
        rampup = self.batch_sizes.rampup
        return {
            "train.global_batch_size": self.global_batch_size,
            "train.rampup_batch_size": None if rampup is None else list(rampup),
            "data.last_batch": self.last_batch,
        }

    def settings(self) -> tuple[object, ...]:
        """What orders the rows besides the data, for comparing ranks."""
        return (*self.order().values(), *self.batches().values(), self.origin)

    def describe(self) -> list[str]:
        """Facts for the log: rows, steps and padding of the first epoch, and what is left out."""
        epoch = self._end_of(self.origin.epoch)
        number, steps = epoch.epoch, epoch.num_steps
        packed = self._rows(number)
        used = epoch.first_row + epoch.num_used
        padding = 1 - int(self.dataset.lengths[packed.records(0, used)].sum()) / (used * self.max_seq_length)
        off = " (packing is off)" if self.packing == "none" else ""
        facts = [
            f"rows: {len(packed):,} of {counted(self.max_seq_length, 'token')} in epoch {number}, "
            f"{padding:.1%} padding{off}",
            f"steps: {steps:,} in epoch {number} with {self._sizes_text(epoch)} a step",
        ]
        if epoch.num_fillers:
            are = "is an empty filler" if epoch.num_fillers == 1 else "are empty fillers"
            facts.append(f"last batch of epoch {number}: {epoch.num_fillers:,} of its rows {are}")
        elif epoch.num_dropped:
            dropped = counted(epoch.num_dropped, "row")
            facts.append(f"last batch of epoch {number}: dropped, with {dropped}")
        return facts

    def _sizes_text(self, epoch: EpochSteps) -> str:
        first, last = epoch.segments[0].size, epoch.segments[-1].size
        return counted(last, "row") if first == last else f"{first:,} to {last:,} rows"

    def _epoch_of(self, step0: int) -> EpochSteps:
        assert step0 >= self.origin.step, "this step lies before the place that the run continues from"
        with self._lock:
            while not self._epochs or self._epochs[-1].first_step + self._epochs[-1].num_steps <= step0:
                self._add_epoch()
            return self._epochs[bisect_right(self._epochs, step0, key=lambda epoch: epoch.first_step) - 1]

    def _end_of(self, epoch: int) -> EpochSteps:
        assert epoch >= self.origin.epoch
        with self._lock:
            while len(self._epochs) <= epoch - self.origin.epoch:
                self._add_epoch()
            return self._epochs[epoch - self.origin.epoch]

    def _add_epoch(self) -> None:
        begin = self._epochs[-1].end if self._epochs else self.origin
        num_rows = len(self._rows(begin.epoch))
        steps = EpochSteps.of(begin, num_rows, self.batch_sizes, fill=self.last_batch == "fill")
        fresh = begin.row == 0 and not self._epochs
        recent = self._epochs[-MAX_EPOCHS_WITHOUT_STEPS:]
        stuck = len(recent) == MAX_EPOCHS_WITHOUT_STEPS and not any(epoch.num_steps for epoch in recent)
        if num_rows == 0 and fresh:
            raise UserError(
                f"0 steps: the weights in data.train leave no record in epoch {begin.epoch} (of "
                f"{counted(len(self.dataset), 'record')}); use larger ones"
            )
        if steps.num_steps == 0 and (fresh or stuck):  # a later epoch may pack into less than a batch
            raise UserError(
                f"0 steps: epoch {begin.epoch} has {counted(num_rows, 'row')} "
                f"({counted(len(self.dataset), 'record')}), fewer than "
                f"{self._size_key(begin)} {self.batch_sizes.at(begin.rows)}, and data.last_batch is drop; "
                f"use data.last_batch: fill, or a global batch of at most {num_rows}"
            )
        self._epochs.append(steps)

    def _size_key(self, begin: Position) -> str:
        is_final = self.batch_sizes.at(begin.rows) == self.global_batch_size
        return "train.global_batch_size" if is_final else "the first size of train.rampup_batch_size"

    def _rows(self, epoch: int) -> PackedEpoch:
        with self._lock:
            if epoch not in self._packed:
                for old in sorted(self._packed)[: 1 - KEPT_EPOCHS]:
                    del self._packed[old]
                self._packed[epoch] = PackedEpoch(self._pack(epoch))
            return self._packed[epoch]

    def _pack(self, epoch: int) -> list[tuple[int, ...]]:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        positions = self.dataset.epoch(epoch, seed=self.seed)
        return pack_epoch(
            self.dataset.lengths,
            positions[generator.permutation(len(positions))].tolist(),
            max_seq_length=self.max_seq_length,
            packing=self.packing,
            window=self.packing_window,
        )
