"""The data of a job from all sides: the records of `data.train`, or those of the validation data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

from rankloom.config import ResolvedConfig
from rankloom.config.energon import ENERGON
from rankloom.data.dataset import TokenizedDataset
from rankloom.data.evaluation import EvaluationRows
from rankloom.data.facts import validation_facts
from rankloom.data.inspect.overview import MAX_STEPS, Overview, StepCounts
from rankloom.data.inspect.record import RecordView
from rankloom.data.inspect.records import Records
from rankloom.data.inspect.step import StepView, check_place, step_view
from rankloom.data.lanes import LaneLoader
from rankloom.data.prepare import PreparedData, RunData, prepare
from rankloom.data.rows import Row

__all__ = ["EvaluationOf", "Look", "TrainingLook", "ValidationLook"]

# What a lane evaluates; None where there is nothing to evaluate.
EvaluationOf = Callable[[ResolvedConfig, RunData, int], EvaluationRows | None]


class Look(Protocol):
    """Everything here raises UserError for data and tokenizers that cannot be used, and for places that do
    not exist."""

    def overview(self) -> Overview: ...

    def sample(self, sample: int) -> RecordView:
        """A record by its place, from 0."""

    def at_line(self, place: str) -> RecordView:
        """A record by what messages call it: N or FILE:N."""

    def step(self, step: int, *, lane: int) -> StepView:
        """What a lane gets; steps count from 1."""


class _OfRecords:
    """The part that is about single records."""

    def __init__(self, resolved: ResolvedConfig, *, validation: bool) -> None:
        self._resolved = resolved
        self._validation = validation

    @cached_property
    def _records(self) -> Records:
        return Records(self._resolved, validation=self._validation)

    def sample(self, sample: int) -> RecordView:
        return self._records.sample(sample)

    def at_line(self, place: str) -> RecordView:
        return self._records.at_line(place)


class TrainingLook(_OfRecords):
    """A `Look` at chats that are tokenised before a run, and at its steps."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        super().__init__(resolved, validation=False)

    def overview(self) -> Overview:
        data, num_steps = self._data, self._num_steps
        batches = ((step, data.stream.batch(step - 1)) for step in range(1, min(num_steps, MAX_STEPS) + 1))
        return Overview(
            facts=data.facts,
            num_samples=len(self._records),
            num_records=len(data.dataset),
            left_out=dict(data.dataset.skipped),
            num_steps=num_steps,
            num_lanes=self._resolved.layout.batch_parallel_size,
            sequence_length=data.stream.max_seq_length,
            first_steps=tuple(
                StepCounts.of(step, len(rows), data.stream.counts_of(rows)) for step, rows in batches
            ),
        )

    def step(self, step: int, *, lane: int) -> StepView:
        data, layout = self._data, self._resolved.layout
        check_place(layout, step=step, lane=lane, num_steps=self._num_steps)
        loader = LaneLoader(
            data.stream,
            data.dataset,
            lane=lane,
            num_lanes=layout.batch_parallel_size,
            micro_batch_size=self._resolved.train.micro_batch_size,
            pad_token_id=data.pad_token_id,
            balance=self._resolved.data.balance,
        )
        return step_view(
            loader.step(step - 1),
            layout,
            tokenizer=data.tokenizer,
            names=lambda row: _names(data.dataset, row),
            step=step,
            num_steps=self._num_steps,
            lane=lane,
        )

    @cached_property
    def _data(self) -> PreparedData:
        return prepare(self._resolved)

    @property
    def _num_steps(self) -> int:
        """Where nothing ends the run, its first epoch is looked at."""
        train = self._resolved.train
        return train.max_steps or self._data.stream.num_steps(train.epochs or 1)


class ValidationLook(_OfRecords):
    """A `Look` at the validation data, and at the batches of an evaluation in place of steps.

    ``evaluation_of``: gives what a lane evaluates.
    """

    def __init__(self, resolved: ResolvedConfig, evaluation_of: EvaluationOf) -> None:
        super().__init__(resolved, validation=True)
        self._evaluation_of = evaluation_of

    def overview(self) -> Overview:
        num_samples = len(self._records)  # refuses a job without validation data
        rows, dataset = self._rows(0), self._dataset
        batches = ((n, rows.batch(n - 1)) for n in range(1, min(rows.num_batches, MAX_STEPS) + 1))
        stream = rows.stream
        return Overview(
            facts=tuple(validation_facts(dataset)),
            num_samples=num_samples,
            num_records=len(dataset),
            left_out=dict(dataset.skipped),
            num_steps=rows.num_batches,
            num_lanes=self._resolved.layout.batch_parallel_size,
            sequence_length=stream.max_seq_length,
            first_steps=tuple(StepCounts.of(n, len(batch), stream.counts_of(batch)) for n, batch in batches),
            validation=True,
        )

    def step(self, step: int, *, lane: int) -> StepView:
        layout = self._resolved.layout
        num_batches = self._rows(0).num_batches
        check_place(layout, step=step, lane=lane, num_steps=num_batches, validation=True)
        rows = self._rows(lane)
        return step_view(
            rows.build(rows.rows(step - 1)),
            layout,
            tokenizer=self._data.tokenizer,
            names=lambda row: _names(self._dataset, row),
            step=step,
            num_steps=num_batches,
            lane=lane,
            validation=True,
        )

    def _rows(self, lane: int) -> EvaluationRows:
        if self._data.validation is None:
            len(self._records)  # says so
        found = self._evaluation_of(self._resolved, self._data, lane)
        assert found is not None
        return found

    @property
    def _dataset(self) -> TokenizedDataset:
        assert self._data.validation is not None
        return self._data.validation

    @cached_property
    def _data(self) -> RunData:
        if self._resolved.data.source != ENERGON:
            return prepare(self._resolved)
        from rankloom.data.energon.prepare import prepare_energon  # loads Energon

        return prepare_energon(self._resolved)


def _names(dataset: TokenizedDataset, row: Row) -> Sequence[str]:
    return [dataset.record_name(record) for record in row.records]
