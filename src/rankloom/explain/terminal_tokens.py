"""From the global batch to the tokens of a rank, for the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.text import Text

from rankloom.config.batch import BatchArithmetic
from rankloom.explain.terminal_style import indented, print_table, some_ranks, table
from rankloom.layout import GTPParallelLayout
from rankloom.plan.batch import sequence_multiple
from rankloom.plan.slices import token_chunks

__all__ = ["MAX_POSITIONS", "print_batch", "print_tokens"]

MAX_LANES = 8
MAX_POSITIONS = 32


def print_batch(batch: BatchArithmetic, *, console: Console) -> None:
    """The batch of a step with its arithmetic, and the rows that the first lanes take."""
    rows, lanes = batch.micro_batch_size, batch.num_lanes
    console.print(Text("Batch of a step", style="bold"))
    factors = (
        f"{_count(rows, 'row')} a microbatch",
        _count(lanes, "lane"),
        _count(batch.num_microbatches, "microbatch", "microbatches"),
    )
    total, own = _count(batch.global_batch_size, "row"), _count(batch.rows_per_lane, "row")
    indented(console, f"{total} = {' x '.join(factors)}; a lane takes {own}.")
    if lanes > 1:
        shown = [_rows_of(lane, rows) for lane in range(min(lanes, MAX_LANES))]
        more = f", and so on to lane {lanes - 1}" if lanes > MAX_LANES else ""
        indented(console, f"Of every {rows * lanes} rows, in order: {', '.join(shown)}{more}.")
    console.print()


def _rows_of(lane: int, rows: int) -> str:
    return f"lane {lane} row{'s' * (rows > 1)} {_span(lane * rows, (lane + 1) * rows)}"


def print_tokens(layout: GTPParallelLayout, *, sequence_length: int | None, console: Console) -> None:
    """Which tokens of a row each context position takes, and the ranks that stand there."""
    positions, multiple = layout.runtime_context_parallel_size, sequence_multiple(layout)
    known = sequence_length is not None and sequence_length % multiple == 0
    console.print(Text("Tokens of a row", style="bold"))
    indented(console, _row_text(layout, sequence_length, known=known))
    if sequence_length is not None and not known:
        what = f"{sequence_length} tokens cannot be cut evenly"
        indented(console, f"{what}: the length of a row must be a multiple of {multiple}.")
    console.print()
    if positions == 1:
        return
    length = sequence_length if known and sequence_length else 2 * positions
    context = layout.coord_arrays()["context"]
    unit = "tokens" if known else f"of {length} chunks"
    made = table("context", unit, "ranks", numbers=("context",), fixed=(unit, "ranks"))
    rows = [
        ", ".join(_span(*chunk) for chunk in token_chunks(length, positions, at)) for at in _first(positions)
    ]
    width = console.width - 1 - len("context") - 4 - max(len(unit), *(len(text) for text in rows))
    for at, text in enumerate(rows):
        ranks = np.flatnonzero(context == at) + layout.rank_offset
        made.add_row(str(at), text, some_ranks(ranks.tolist(), width=width))
    cut = positions > MAX_POSITIONS
    caption = f"the first {MAX_POSITIONS} of {positions} context positions" if cut else ""
    print_table(console, "Context positions", made, caption=caption)


def _row_text(layout: GTPParallelLayout, length: int | None, *, known: bool) -> str:
    positions, tp = layout.runtime_context_parallel_size, layout.tensor_model_parallel_size
    row = f"A row of {length} tokens" if known else "A row"
    if positions == 1:
        text = f"{row} is not cut: every rank of a lane takes all of it."
    else:
        each = f", {length // positions} tokens each" if known and length else ""
        text = (
            f"{row} is cut into {2 * positions} chunks; a rank takes an early and a late one{each}, so that"
            " causal attention is equal work."
        )
    if tp == 1:
        return text
    shares = f"The {tp} ranks of a TP group take the same tokens"
    norms = (
        f", and each works on 1/{tp} of them in norms and residuals (SP)" if layout.sequence_parallel else ""
    )
    return f"{text} {shares}{norms}."


def _first(positions: int) -> range:
    return range(min(positions, MAX_POSITIONS))


def _span(start: int, stop: int) -> str:
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
