"""Who trains on which rows of a step: dealt in order, or so that the work is even."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.data import Dealer, LaneLoader, Row
from tests.data.chats import dataset, stream

LENGTHS = np.array([8, 1, 1, 7, 2, 6, 6, 1])
ROWS = [Row(i, 0, (i,)) for i in range(8)]


def lanes(dealer: Dealer, rows: list[Row]) -> list[list[list[int]]]:
    return [[[row.row_id for row in microbatch] for microbatch in lane] for lane in dealer.lanes(rows)]


def test_in_order() -> None:
    assert lanes(Dealer(2, 2, LENGTHS), ROWS) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert lanes(Dealer(4, 1, LENGTHS), ROWS) == [[[0], [4]], [[1], [5]], [[2], [6]], [[3], [7]]]


def test_by_work() -> None:
    """64 to one lane, 49 to the other; 36 to that with 49, 36 to that with 64, 4 to that with 85, ..."""
    dealer = Dealer(2, 2, LENGTHS, "work")
    assert lanes(dealer, ROWS) == [[[0, 6], [2, 7]], [[3, 5], [4, 1]]]
    assert dealer.work(ROWS) == [64, 1, 1, 49, 4, 36, 36, 1]
    assert dealer.imbalance(ROWS).work == 102 / 96
    assert dealer.imbalance(ROWS).tokens == 1.0
    plain = Dealer(2, 2, LENGTHS).imbalance(ROWS)
    assert plain.work == 105 / 96
    assert plain.tokens == 17 / 16


def test_work_is_that_of_each_record_of_a_row() -> None:
    rows = [Row(0, 0, (0, 3)), Row(1, 0, (1, 2)), Row(-1, 0, ()), Row(2, 0, (5,))]
    dealer = Dealer(2, 1, LENGTHS, "work")
    assert dealer.work(rows) == [64 + 49, 2, 0, 36]
    assert lanes(dealer, rows) == [[[0], [-1]], [[2], [1]]]


def test_lanes_without_anything_are_even() -> None:
    assert Dealer(2, 1, LENGTHS).imbalance([Row(-1, 0, ())] * 2) == Dealer(1, 1, LENGTHS).imbalance(ROWS[:1])


@given(
    lengths=st.lists(st.integers(2, 16), min_size=1, max_size=40),
    num_lanes=st.integers(1, 4),
    micro=st.integers(1, 3),
    microbatches=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_balance_changes_neither_the_rows_of_a_step_nor_the_size_of_a_microbatch(
    lengths: list[int], num_lanes: int, micro: int, microbatches: int
) -> None:
    data = dataset(lengths)
    batch = num_lanes * micro * microbatches
    rows = stream(data, max_seq_length=16, packing=True, global_batch_size=batch)
    for step0 in range(rows.num_steps(1)):
        dealt = Dealer(num_lanes, micro, data.lengths, "work").lanes(rows.batch(step0))
        assert dealt == Dealer(num_lanes, micro, data.lengths, "work").lanes(rows.batch(step0))
        assert [[len(m) for m in lane] for lane in dealt] == [[micro] * microbatches] * num_lanes
        key = sorted((row.row_id, row.records) for lane in dealt for m in lane for row in m)
        assert key == sorted((row.row_id, row.records) for row in rows.batch(step0))
        for lane in range(num_lanes):
            loader = LaneLoader(
                rows, data, lane=lane, num_lanes=num_lanes, micro_batch_size=micro, balance="work"
            )
            assert [m.rows for m in loader.step(step0)] == dealt[lane]


def test_balance_evens_out_the_lanes() -> None:
    """No bound holds for every step, but the longest-first rule is never far off on many rows."""
    rng = np.random.default_rng(0)
    data = dataset(rng.integers(2, 200, 400).tolist())
    rows = stream(data, max_seq_length=200, global_batch_size=32)
    plain, even = (Dealer(4, 2, data.lengths, kind) for kind in ("none", "work"))  # type: ignore[arg-type]
    steps = range(rows.num_steps(1) - 1)
    assert np.mean([plain.imbalance(rows.batch(s)).work for s in steps]) > 1.2
    assert max(even.imbalance(rows.batch(s)).work for s in steps) < 1.05
