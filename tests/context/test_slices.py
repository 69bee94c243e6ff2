"""The cut of a sequence over the context group, and which keys each query sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.context import ContextSlices, segments_of_row

RANKS = st.integers(1, 5)


def taken(tokens: list[int], num_ranks: int) -> list[list[int]]:
    slices = ContextSlices(len(tokens), num_ranks)
    return [slices.take(torch.tensor([tokens]), rank)[0].tolist() for rank in range(num_ranks)]


def test_eight_tokens_over_two_ranks() -> None:
    assert taken([0, 1, 2, 3, 4, 5, 6, 7], 2) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert taken([1, 2, 3, 4, 5, 6, 7, -100], 2) == [[1, 2, 7, -100], [3, 4, 5, 6]]  # labels, shifted before


def test_eight_tokens_over_one_and_four_ranks() -> None:
    assert taken(list(range(8)), 1) == [list(range(8))]
    assert taken(list(range(8)), 4) == [[0, 7], [1, 6], [2, 5], [3, 4]]


@given(num_ranks=RANKS, size=st.integers(1, 4), batch=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_joining_what_was_taken_or_split_gives_the_whole(num_ranks: int, size: int, batch: int) -> None:
    slices = ContextSlices(2 * num_ranks * size, num_ranks)
    whole = torch.arange(batch * slices.length * 3).view(batch, slices.length, 3)
    parts = torch.stack([slices.take(whole, rank) for rank in range(num_ranks)])
    assert parts.shape[2] == slices.local_length
    assert torch.equal(slices.join(parts, dim=1), whole)
    for dim in range(3):
        turned = whole.movedim(1, dim)
        split = slices.split(turned, dim=dim)
        assert split.is_contiguous()
        assert split.shape[0] == num_ranks
        assert torch.equal(slices.join(split, dim=dim), turned)


@given(num_ranks=RANKS, size=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_rank_has_the_same_causal_work(num_ranks: int, size: int) -> None:
    slices = ContextSlices(2 * num_ranks * size, num_ranks)
    positions = torch.arange(slices.length)[None]
    assert len({int(slices.take(positions, rank).sum()) for rank in range(num_ranks)}) == 1


def test_a_length_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(AssertionError):
        ContextSlices(6, 2)
    assert ContextSlices(7, 1).local_length == 7


@st.composite
def document_ids(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    num_ranks = draw(st.integers(1, 4))
    length = 2 * num_ranks * draw(st.integers(1, 5))
    borders = draw(st.sets(st.integers(1, length - 1), max_size=min(6, length - 1)))
    ids = np.zeros(length, dtype=np.int32)
    for border in borders:
        ids[border:] += 1
    return ids, num_ranks


@given(case=document_ids())
@settings(max_examples=200, deadline=None)
def test_segments_are_the_mask_of_documents_and_causal_order(case: tuple[np.ndarray, int]) -> None:
    ids, num_ranks = case
    slices = ContextSlices(len(ids), num_ranks)
    positions = np.arange(len(ids))
    allowed = (ids[:, None] == ids[None, :]) & (positions[:, None] >= positions[None, :])
    for rank in range(num_ranks):
        mine = slices.take(torch.from_numpy(positions)[None], rank)[0].numpy()
        seen = np.zeros((len(mine), len(ids)), dtype=int)
        at = 0
        for s in segments_of_row(ids, slices, rank=rank):
            assert s.query_start == at
            at = s.query_stop
            # The rectangle aligned at its lower right corner: the last query sees the last key.
            distance = np.arange(s.num_keys - s.num_queries, s.num_keys)[:, None] - np.arange(s.num_keys)
            seen[s.query_start : s.query_stop, s.key_start : s.key_stop] += distance >= 0
        assert at == len(mine)
        assert (seen == allowed[mine]).all()
