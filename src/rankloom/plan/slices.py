"""Which tokens of a row a context rank holds: two chunks, one from each end, so that causal work is equal.

A row of S tokens is cut into 2C chunks for C context ranks; rank c holds chunks c and 2C - 1 - c ("zigzag").
Example, S = 8, C = 2: rank 0 holds tokens 0 1 6 7, rank 1 holds 2 3 4 5.
"""

from __future__ import annotations

__all__ = ["token_chunks"]


def token_chunks(sequence_length: int, num_context_ranks: int, context: int) -> tuple[tuple[int, int], ...]:
    """[start, stop) of the pieces of a row that a context rank holds, in its local order.

    ``sequence_length`` is a multiple of 2 x ``num_context_ranks``, unless there is one context rank.

    >>> token_chunks(256, 4, 1)
    ((32, 64), (192, 224))
    """
    if num_context_ranks == 1:
        return ((0, sequence_length),)
    assert sequence_length % (2 * num_context_ranks) == 0, (sequence_length, num_context_ranks)
    size = sequence_length // (2 * num_context_ranks)
    return tuple((k * size, (k + 1) * size) for k in (context, 2 * num_context_ranks - 1 - context))
