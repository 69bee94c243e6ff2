"""Packing: by hand, by its properties, and against a plain first-fit decreasing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.data import pack_epoch
from rankloom.data.packing import METHODS, PackedEpoch, packing_method
from rankloom.errors import UserError
from tests.data.chats import dataset, stream

LENGTHS = st.lists(st.integers(2, 16), min_size=1, max_size=60)
FFD = "first_fit_decreasing"


def test_first_fit_decreasing_by_hand() -> None:
    lengths = [3, 4, 2, 5, 1]
    assert pack_epoch(lengths, range(5), max_seq_length=8, packing=FFD) == [(0, 3), (1, 2, 4)]
    assert pack_epoch(lengths, [4, 3, 2, 1, 0], max_seq_length=8, packing=FFD) == [(4, 2, 1), (3, 0)]
    assert pack_epoch(lengths, range(5), max_seq_length=8, packing=FFD, window=2) == [(0, 1), (2, 3), (4,)]
    assert pack_epoch([], [], max_seq_length=8, packing=FFD) == []


def test_first_fit_decreasing_fits_where_greedy_cannot() -> None:
    """Ten of 2 and ten of 6, the small ones first: greedy packs four of 2 into a row and each 6 alone."""
    lengths = [2] * 10 + [6] * 10
    assert len(pack_epoch(lengths, range(20), max_seq_length=8, packing="greedy")) == 13
    assert len(pack_epoch(lengths, range(20), max_seq_length=8, packing=FFD)) == 10


def test_what_a_setting_means() -> None:
    assert [packing_method(value) for value in (True, False, *METHODS)] == ["greedy", "none", *METHODS]
    with pytest.raises(
        UserError, match=r'data\.packing is "best"; use true, false, first_fit_decreasing, greedy'
    ):
        packing_method("best")


def plain_first_fit_decreasing(lengths: list[int], room: int) -> list[set[int]]:
    rows: list[tuple[int, set[int]]] = []
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for number, (left, row) in enumerate(rows):
            if left >= lengths[place]:
                rows[number] = (left - lengths[place], row | {place})
                break
        else:
            rows.append((room - lengths[place], {place}))
    return [row for _, row in rows]


@given(lengths=LENGTHS, window=st.integers(1, 70))
@settings(max_examples=100, deadline=None)
def test_each_window_is_packed_on_its_own(lengths: list[int], window: int) -> None:
    found = pack_epoch(lengths, range(len(lengths)), max_seq_length=16, packing=FFD, window=window)
    expected = []
    for start in range(0, len(lengths), window):
        part = plain_first_fit_decreasing(lengths[start : start + window], 16)
        expected += sorted(tuple(sorted(start + place for place in row)) for row in part)
    assert found == expected


@given(lengths=LENGTHS, packing=st.sampled_from(METHODS), window=st.integers(1, 70), seed=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_every_record_is_in_one_row_and_every_row_fits(
    lengths: list[int], packing: str, window: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    rows = pack_epoch(lengths, order, max_seq_length=16, packing=packing, window=window)
    assert rows == pack_epoch(lengths, iter(order), max_seq_length=16, packing=packing, window=window)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[position] for position in row) <= 16 for row in rows)
    assert all([order.index(p) for p in row] == sorted(order.index(p) for p in row) for row in rows)


@given(lengths=LENGTHS, packing=st.sampled_from(METHODS), seed=st.integers(0, 5), batch=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_packing_never_crosses_an_epoch(lengths: list[int], packing: str, seed: int, batch: int) -> None:
    rows = stream(
        dataset(lengths),
        max_seq_length=16,
        packing=packing,
        packing_window=7,
        seed=seed,
        global_batch_size=batch,
    )
    for epoch in range(3):
        steps = range(rows.num_steps(epoch), rows.num_steps(epoch + 1))
        seen = [(row.epoch, record) for s in steps for row in rows.batch(s) for record in row.records]
        assert {found for found, _ in seen} == {epoch}
        assert sorted(record for _, record in seen) == list(range(len(lengths)))


@given(rows=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_packed_epoch_gives_back_its_rows(rows: list[tuple[int, ...]]) -> None:
    packed = PackedEpoch(rows)
    assert len(packed) == len(rows)
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 3):
            assert packed.rows(start, stop) == rows[start:stop]
            assert packed.records(start, stop).tolist() == [p for row in rows[start:stop] for p in row]
