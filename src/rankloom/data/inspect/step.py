"""The rows of one lane in one step, and which context rank gets which of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from rankloom.data.inspect.texts import TokenTexts
from rankloom.data.lanes import IGNORE, LaneMicrobatch
from rankloom.data.rows import Row
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan.slices import token_chunks

__all__ = ["ContextView", "DocumentView", "RowView", "StepView", "check_place", "step_view"]


@dataclass(frozen=True)
class DocumentView:
    """A record in a row: tokens [start, stop); ``labels``: how many of its tokens are predicted."""

    name: str
    start: int
    stop: int
    labels: int


@dataclass(frozen=True)
class RowView:
    """A row as its lane gets it; S tokens with the padding.

    Attributes:
        row: its number in the run; None for a filler.
        epoch: from 0.
        virtual_lane: of an Energon data set, the one that it is from; else None.
        records: in order.
        num_tokens: without padding.
        ids, texts, special: [S], see `TokenTexts`; padding has no text.
        trained: [S] which tokens are predicted, each by the token before it.
        labels: [S] what each token predicts, or -100.
        positions, documents: [S]; the padding is one document more.
    """

    row: int | None
    epoch: int
    virtual_lane: int | None
    records: tuple[DocumentView, ...]
    num_tokens: int
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    special: tuple[bool, ...]
    trained: tuple[bool, ...]
    labels: tuple[int, ...]
    positions: tuple[int, ...]
    documents: tuple[int, ...]

    @property
    def num_labels(self) -> int:
        return sum(record.labels for record in self.records)


@dataclass(frozen=True)
class ContextView:
    """A context position of the lane: its ``ranks`` (all of a TP group) get ``pieces`` [start, stop) of every
    row; of all rows of the step, so many tokens without padding, and so many labels."""

    context: int
    ranks: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]
    num_tokens: int
    num_labels: int


@dataclass(frozen=True)
class StepView:
    """One step of one lane, or one batch of an evaluation.

    ``step`` counts from 1; ``num_steps``: those of the run, or batches of an evaluation; None where nothing
    ends them. ``epoch``: of the first row, from 0.
    """

    step: int
    num_steps: int | None
    lane: int
    num_lanes: int
    epoch: int
    sequence_length: int
    contexts: tuple[ContextView, ...]
    microbatches: tuple[tuple[RowView, ...], ...]
    validation: bool = False


def check_place(
    layout: GTPParallelLayout, *, step: int, lane: int, num_steps: int | None, validation: bool = False
) -> None:
    """Raises UserError, with the range, where there is no such step or lane."""
    if step < 1 or (num_steps is not None and step > num_steps):
        last = "" if num_steps is None else f" to {num_steps}"
        what = "an evaluation has batches" if validation else "the run has steps"
        raise UserError(f"--step {step}: {what} 1{last or ', 2 and so on'}")
    if not 0 <= lane < layout.batch_parallel_size:
        raise UserError(f"--lane {lane}: the layout has lanes 0 to {layout.batch_parallel_size - 1}")


def step_view(
    microbatches: Sequence[LaneMicrobatch],
    layout: GTPParallelLayout,
    *,
    tokenizer: PreTrainedTokenizerBase,
    names: Callable[[Row], Sequence[str]],
    step: int,
    num_steps: int | None,
    lane: int,
    num_virtual_lanes: int | None = None,
    validation: bool = False,
) -> StepView:
    """What lane ``lane`` is given in step ``step``.

    Args:
        microbatches: those of the lane in this step, at least one.
        layout: of the run.
        tokenizer: which made the tokens.
        names: of the records of a row, as a person can look them up.
        num_virtual_lanes: of an Energon data set.
    """
    return StepView(
        step=step,
        num_steps=num_steps,
        lane=lane,
        num_lanes=layout.batch_parallel_size,
        epoch=microbatches[0].rows[0].epoch,
        sequence_length=microbatches[0].input_ids.shape[1],
        contexts=tuple(
            _context(layout, microbatches, lane=lane, context=context)
            for context in range(layout.runtime_context_parallel_size)
        ),
        microbatches=tuple(
            tuple(
                _row(microbatch, place, names(row), tokenizer, num_virtual_lanes)
                for place, row in enumerate(microbatch.rows)
            )
            for microbatch in microbatches
        ),
        validation=validation,
    )


def _context(
    layout: GTPParallelLayout, microbatches: Sequence[LaneMicrobatch], *, lane: int, context: int
) -> ContextView:
    coords = layout.coord_arrays()
    ranks = np.flatnonzero((coords["lane"] == lane) & (coords["context"] == context)) + layout.rank_offset
    length = microbatches[0].input_ids.shape[1]
    pieces = token_chunks(length, layout.runtime_context_parallel_size, context)
    held = np.concatenate([np.arange(*piece) for piece in pieces])
    return ContextView(
        context=context,
        ranks=tuple(ranks.tolist()),
        pieces=pieces,
        num_tokens=sum(int((held < m.real_lengths[:, None]).sum()) for m in microbatches),
        num_labels=sum(int((m.labels[:, held] != IGNORE).sum()) for m in microbatches),
    )


def _row(
    microbatch: LaneMicrobatch,
    place: int,
    names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    num_virtual_lanes: int | None,
) -> RowView:
    row, ids = microbatch.rows[place], microbatch.input_ids[place].tolist()
    labels = microbatch.labels[place].tolist()
    records = _records(microbatch, place, names)
    num_tokens = records[-1].stop if records else 0
    texts, special = [""] * len(ids), [False] * len(ids)
    for record in records:
        here = slice(record.start, record.stop)
        found = TokenTexts.of(tokenizer, ids[here])
        texts[here], special[here] = found.texts, found.special
    return RowView(
        row=None if row.is_filler else row.row_id,
        epoch=row.epoch,
        virtual_lane=None if num_virtual_lanes is None else row.row_id % num_virtual_lanes,
        records=records,
        num_tokens=num_tokens,
        ids=tuple(ids),
        texts=tuple(texts),
        special=tuple(special),
        trained=(False, *(label != IGNORE for label in labels[:-1])),
        labels=tuple(labels),
        positions=tuple(microbatch.position_ids[place].tolist()),
        documents=tuple(microbatch.document_ids[place].tolist()),
    )


def _records(microbatch: LaneMicrobatch, place: int, names: Sequence[str]) -> tuple[DocumentView, ...]:
    labels = microbatch.labels[place]
    starts = np.searchsorted(microbatch.document_ids[place], np.arange(len(names) + 1)).tolist()
    return tuple(
        DocumentView(name, start, stop, int((labels[start:stop] != IGNORE).sum()))
        for name, (start, stop) in zip(names, pairwise(starts), strict=True)
    )
