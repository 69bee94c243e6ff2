"""An Energon data set as it is trained on: its samples, and the rows that lanes make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from rankloom.config import ResolvedConfig
from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.library import require_energon
from rankloom.data.energon.loading import EnergonLoader
from rankloom.data.energon.prepare import EnergonRunData, prepare_energon
from rankloom.data.energon.samples import Samples
from rankloom.data.energon.task import RawChat, record_of
from rankloom.data.inspect.overview import MAX_STEPS, Overview, StepCounts
from rankloom.data.inspect.record import RecordView, fate, record_view
from rankloom.data.inspect.step import StepView, check_place, step_view
from rankloom.data.rows import Row
from rankloom.errors import UserError
from rankloom.records.record import BadRecordError
from rankloom.records.words import counted, total_by_reason

__all__ = ["EnergonLook"]


class EnergonLook:
    """A `rankloom.data.inspect.looks.Look` at samples and steps. A step is made from the first one on."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        require_energon()
        self._resolved = resolved

    def overview(self) -> Overview:
        num_steps = self._resolved.train.max_steps
        loader = self._loader(lane=0, num_lanes=1, micro_batch_size=1)
        steps = [loader.take(step0)[0] for step0 in range(min(num_steps or MAX_STEPS, MAX_STEPS))]
        return Overview(
            facts=(*self._data.facts, *self._epoch_facts(loader)),
            num_samples=self._data.num_samples,
            num_records=None,
            left_out=dict(loader.lanes.skipped),
            num_steps=num_steps,
            num_lanes=self._resolved.layout.batch_parallel_size,
            sequence_length=self._resolved.data.max_seq_length,
            first_steps=tuple(
                StepCounts.of(number, self._data.rows.of(number - 1)[1], step.counts)
                for number, step in enumerate(steps, start=1)
            ),
        )

    def _epoch_facts(self, loader: EnergonLoader) -> Iterator[str]:
        """What is not known before, as far as samples were read."""
        assert isinstance(loader.lanes, VirtualLanes)
        rows = round(loader.lanes.rows_per_sample * self._data.num_samples)
        size = self._resolved.train.global_batch_size
        steps = counted(max(1, round(rows / size)), "step")
        yield (
            f"an epoch: about {counted(rows, 'row')}, {steps} of {size:,} (judged by the samples read so far)"
        )
        if loader.lanes.skipped:
            yield f"left out so far: {total_by_reason(loader.lanes.skipped, 'sample')}"

    def step(self, step: int, *, lane: int) -> StepView:
        train, layout = self._resolved.train, self._resolved.layout
        check_place(layout, step=step, lane=lane, num_steps=train.max_steps)
        loader = self._loader(
            lane=lane, num_lanes=layout.batch_parallel_size, micro_batch_size=train.micro_batch_size
        )
        for step0 in range(step):
            made, _ = loader.take(step0)
        places = {row["row"]: row["records"] for row in made.places}

        def names(row: Row) -> list[str]:
            return list(places[row.row_id])

        return step_view(
            made.microbatches,
            layout,
            tokenizer=self._data.tokenizer,
            names=names,
            step=step,
            num_steps=train.max_steps,
            lane=lane,
            num_virtual_lanes=self._data.num_virtual_lanes,
        )

    def sample(self, sample: int) -> RecordView:
        """A sample by its place in the data set, from 0, trained on or not."""
        if not 0 <= sample < len(self._samples):
            there = f"{counted(len(self._samples), 'sample')}, 0 to {len(self._samples) - 1}"
            raise UserError(f"--sample {sample}: {self._data.source.name} has {there}")
        return self._view(sample, self._samples[sample])

    def at_line(self, place: str) -> RecordView:
        """A sample by the tar file and key that messages name: FILE:KEY, or KEY alone."""
        shard, _, key = place.rpartition(":")
        number = self._samples.find(key, shard=shard or None)
        if number is None:
            raise UserError(
                f"--line {place}: {self._data.source.name} has no such sample; write the file and the key "
                "that messages name, FILE:KEY"
            )
        return self._view(number, self._samples[number])

    def _view(self, number: int, raw: RawChat) -> RecordView:
        encoder, settings = self._data.encoder, self._data.settings
        try:
            record = record_of(raw)
            (tokens,) = encoder.tokenize([encoder.render(record)])
            if isinstance(tokens, BadRecordError):
                raise tokens
        except BadRecordError as problem:
            return RecordView(number, raw.place, left_out=str(problem))
        left_out, num_kept = fate(
            tokens[1], max_seq_length=settings.max_seq_length, overlong=settings.overlong
        )
        return record_view(
            record,
            tokens,
            encoder,
            tokenizer=self._data.tokenizer,
            sample=number,
            name=raw.place,
            left_out=left_out,
            num_kept=num_kept,
        )

    def _loader(self, *, lane: int, num_lanes: int, micro_batch_size: int) -> EnergonLoader:
        return EnergonLoader(self._data, lane=lane, num_lanes=num_lanes, micro_batch_size=micro_batch_size)

    @cached_property
    def _data(self) -> EnergonRunData:
        return replace(prepare_energon(self._resolved), num_workers=0)

    @cached_property
    def _samples(self) -> Samples:
        return Samples(self._data.source)
