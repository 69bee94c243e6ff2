"""The rows of one lane in one step, and which context rank gets which of their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankloom.data.inspect.texts import TokenTexts
from rankloom.data.lanes import IGNORE, LaneLoader, LaneMicrobatch
from rankloom.data.prepare import PreparedData
from rankloom.data.rows import Row
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan.slices import token_chunks

__all__ = ["ContextView", "DocumentView", "RowView", "StepView", "step_view"]


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
        records: in order.
        num_tokens: without padding.
        ids, texts, special: [S], see `TokenTexts`; padding has no text.
        trained: [S] which tokens are predicted, each by the token before it.
        labels: [S] what each token predicts, or -100.
        positions, documents: [S]; the padding is one document more.
    """

    row: int | None
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
    """One step of one lane. Steps count from 1; ``num_steps``: those of the run; epochs count from 0."""

    step: int
    num_steps: int
    lane: int
    num_lanes: int
    epoch: int
    sequence_length: int
    contexts: tuple[ContextView, ...]
    microbatches: tuple[tuple[RowView, ...], ...]


def step_view(
    data: PreparedData,
    layout: GTPParallelLayout,
    *,
    micro_batch_size: int,
    balance: str,
    num_steps: int,
    step: int,
    lane: int,
) -> StepView:
    """What lane ``lane`` trains on in step ``step``.

    Raises:
        UserError: there is no such step or lane; the range is named.
    """
    if not 1 <= step <= num_steps:
        raise UserError(f"--step {step}: the run has steps 1 to {num_steps}")
    if not 0 <= lane < layout.batch_parallel_size:
        raise UserError(f"--lane {lane}: the layout has lanes 0 to {layout.batch_parallel_size - 1}")
    loader = LaneLoader(
        data.stream,
        data.dataset,
        lane=lane,
        num_lanes=layout.batch_parallel_size,
        micro_batch_size=micro_batch_size,
        pad_token_id=data.pad_token_id,
        balance=balance,
    )
    microbatches = loader.step(step - 1)
    return StepView(
        step=step,
        num_steps=num_steps,
        lane=lane,
        num_lanes=layout.batch_parallel_size,
        epoch=microbatches[0].rows[0].epoch,
        sequence_length=data.stream.max_seq_length,
        contexts=tuple(
            _context(layout, microbatches, lane=lane, context=context)
            for context in range(layout.runtime_context_parallel_size)
        ),
        microbatches=tuple(
            tuple(_row(data, microbatch, place) for place in range(len(microbatch.rows)))
            for microbatch in microbatches
        ),
    )


def _context(
    layout: GTPParallelLayout, microbatches: list[LaneMicrobatch], *, lane: int, context: int
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


def _row(data: PreparedData, microbatch: LaneMicrobatch, place: int) -> RowView:
    row, ids, labels = (
        microbatch.rows[place],
        microbatch.input_ids[place].tolist(),
        microbatch.labels[place].tolist(),
    )
    records = _records(data, row, labels)
    num_tokens = records[-1].stop if records else 0
    texts, special = [""] * len(ids), [False] * len(ids)
    for record in records:
        here = slice(record.start, record.stop)
        found = TokenTexts.of(data.tokenizer, ids[here])
        texts[here], special[here] = found.texts, found.special
    return RowView(
        row=None if row.is_filler else row.row_id,
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


def _records(data: PreparedData, row: Row, labels: list[int]) -> tuple[DocumentView, ...]:
    lengths = [int(data.dataset.lengths[record]) for record in row.records]
    borders = np.cumsum([0, *lengths]).tolist()
    return tuple(
        DocumentView(
            data.dataset.record_name(record), start, stop, sum(x != IGNORE for x in labels[start:stop])
        )
        for record, (start, stop) in zip(row.records, pairwise(borders), strict=True)
    )
