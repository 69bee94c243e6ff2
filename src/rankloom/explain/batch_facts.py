"""From the global batch to the tokens of a rank, as plain data for a page."""

from __future__ import annotations

from rankloom.config.batch import BatchArithmetic, sequence_multiple
from rankloom.layout import GTPParallelLayout
from rankloom.plan.slices import token_chunks

__all__ = ["batch_facts", "sequence_facts"]

Range = tuple[int, int]


def batch_facts(batch: BatchArithmetic | None) -> dict[str, object] | None:
    """Sizes in rows, and for each lane the rows [start, stop) of a microbatch that it takes."""
    if batch is None:
        return None
    rows = batch.micro_batch_size
    return {
        "global_batch_size": batch.global_batch_size,
        "micro_batch_size": rows,
        "num_lanes": batch.num_lanes,
        "num_microbatches": batch.num_microbatches,
        "rows_per_microbatch": rows * batch.num_lanes,
        "lane_rows": [(lane * rows, (lane + 1) * rows) for lane in range(batch.num_lanes)],
    }


def sequence_facts(layout: GTPParallelLayout, sequence_length: int | None) -> dict[str, object]:
    """How a row is cut: ``chunks`` has the [start, stop) of every context position, ``slices`` those of every
    context position and TP coordinate under sequence parallelism.

    Without a length, or with one that cannot be cut evenly, ``length`` is None and positions count the
    ``unit`` pieces that the row is cut into.
    """
    context = layout.runtime_context_parallel_size
    pieces = 2 * context if context > 1 else 1
    known = sequence_length if sequence_length and not sequence_length % sequence_multiple(layout) else None
    length = known or pieces
    chunks = [token_chunks(length, context, position) for position in range(context)]
    tp = layout.tensor_model_parallel_size if layout.sequence_parallel else 1
    return {
        "length": known,
        "asked": sequence_length,
        "multiple": sequence_multiple(layout),
        "unit": pieces,
        "chunks": chunks,
        "tokens_per_rank": length // context,
        "slices": [_slices(own, tp) for own in chunks] if tp > 1 and known else None,
    }


def _slices(chunks: tuple[Range, ...], tp: int) -> list[list[Range]]:
    """The tokens of each TP coordinate: equal consecutive parts of the chunks laid end to end."""
    part = sum(stop - start for start, stop in chunks) // tp
    return [_within(chunks, t * part, (t + 1) * part) for t in range(tp)]


def _within(chunks: tuple[Range, ...], low: int, high: int) -> list[Range]:
    found, at = [], 0
    for start, stop in chunks:
        a, b = max(low, at), min(high, at + stop - start)
        if a < b:
            found.append((start + a - at, start + b - at))
        at += stop - start
    return found
