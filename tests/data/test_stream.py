"""Packing, the global stream and the lanes: the same rows in every layout, each record once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.data import IGNORE, GlobalStream, LaneLoader, Row, TokenizedDataset, pack_epoch
from rankloom.data.lanes import build_microbatch
from rankloom.errors import UserError
from tests.data.chats import dataset, stream

LENGTHS = st.lists(st.integers(2, 16), min_size=1, max_size=60)


def loaders(rows: GlobalStream, num_lanes: int, micro_batch_size: int) -> list[LaneLoader]:
    return [
        LaneLoader(rows, rows.dataset, lane=lane, num_lanes=num_lanes, micro_batch_size=micro_batch_size)
        for lane in range(num_lanes)
    ]


def test_packing_by_hand() -> None:
    assert pack_epoch([3, 4, 2, 5, 1], range(5), max_seq_length=8, packing=True) == [(0, 1, 4), (2, 3)]
    assert pack_epoch([3, 4, 2, 5, 1], [4, 3, 2, 1, 0], max_seq_length=8, packing=True) == [(4, 3, 2), (1, 0)]
    assert pack_epoch([3, 4, 2], [2, 0, 1], max_seq_length=8, packing=False) == [(2,), (0,), (1,)]
    assert pack_epoch([], [], max_seq_length=8, packing=True) == []


@given(lengths=LENGTHS, packing=st.booleans(), seed=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_record_is_in_one_row_and_every_row_fits(lengths: list[int], packing: bool, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    rows = pack_epoch(lengths, order, max_seq_length=16, packing=packing)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[position] for position in row) <= 16 for row in rows)
    assert all([order.index(p) for p in row] == sorted(order.index(p) for p in row) for row in rows)


@given(
    lengths=LENGTHS,
    packing=st.booleans(),
    seed=st.integers(0, 5),
    num_microbatches=st.integers(1, 3),
    split=st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4)]),
    last_batch=st.sampled_from(["fill", "drop"]),
)
@settings(max_examples=100, deadline=None)
def test_rows_do_not_depend_on_lanes_and_each_record_is_used_once(
    lengths: list[int],
    packing: bool,
    seed: int,
    num_microbatches: int,
    split: tuple[int, int],
    last_batch: str,
) -> None:
    lanes, micro = split
    batch = lanes * micro * num_microbatches
    data = dataset(lengths)
    given_settings = {"max_seq_length": 16, "packing": packing, "seed": seed, "global_batch_size": batch}
    try:
        rows = stream(data, last_batch=last_batch, **given_settings)
    except UserError:
        assert last_batch == "drop"
        return
    dealt = loaders(rows, lanes, micro)
    for epoch in range(2):
        first, steps = rows.num_steps(epoch), rows.steps_per_epoch(epoch)
        seen: list[int] = []
        for step0 in range(first, first + steps):
            # A fresh stream, asked for this step alone, agrees: nothing depends on what was asked before.
            assert stream(data, last_batch=last_batch, **given_settings).batch(step0) == rows.batch(step0)
            parts = [loader.step(step0) for loader in dealt]
            joined = [row for m in range(num_microbatches) for part in parts for row in part[m].rows]
            assert tuple(joined) == rows.batch(step0)
            assert {row.epoch for row in joined} == {epoch}
            valid = sum(int((mb.labels != IGNORE).sum()) for part in parts for mb in part)
            real = sum(int(mb.real_lengths.sum()) for part in parts for mb in part)
            counts = rows.counts(step0)
            assert counts.rows == sum(bool(row.records) for row in joined)
            assert (counts.tokens, counts.valid_tokens) == (real, valid)
            seen += [record for row in joined for record in row.records]
            assert counts.chats == sum(len(row.records) for row in joined)
        assert len(set(seen)) == len(seen)
        if last_batch == "fill":
            assert sorted(seen) == list(range(len(lengths)))


def test_row_ids_count_the_rows_that_are_trained() -> None:
    for last_batch, expected in (("fill", [0, 1, 2, 3, 4, -1, 5, 6, 7, 8, 9, -1]), ("drop", list(range(8)))):
        rows = stream(dataset([3] * 5), global_batch_size=2, last_batch=last_batch)
        found = [row.row_id for step0 in range(rows.num_steps(2)) for row in rows.batch(step0)]
        assert found == expected


def test_epochs_have_different_orders_and_seeds_too() -> None:
    data = dataset([3] * 40)
    first, second = (stream(data, global_batch_size=40, seed=seed) for seed in (0, 1))
    assert len({first.batch(0), first.batch(1), second.batch(0), second.batch(1)}) == 4
    assert first.batch(1) == stream(data, global_batch_size=40, seed=0).batch(1)


def test_the_order_is_pinned() -> None:
    """A change here changes what every resumed run trains on."""
    rows = stream(dataset([3] * 8), global_batch_size=8, seed=7)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, 1]))).permutation(8)
    assert [row.records for row in rows.batch(1)] == [(int(p),) for p in expected]


def test_lanes_have_their_own_records_and_all_are_seen() -> None:
    rows = stream(dataset([3] * 8), global_batch_size=8)
    ids = [
        {record for microbatch in loader.step(0) for row in microbatch.rows for record in row.records}
        for loader in loaders(rows, 2, 2)
    ]
    assert ids[0].isdisjoint(ids[1])
    assert sorted(ids[0] | ids[1]) == list(range(8))


def test_two_packed_documents() -> None:
    """Labels stop at a document's end, positions restart, the padding tail is one more document."""
    data = dataset([3, 3], trained_from=0)
    batch = build_microbatch([Row(0, 0, (0, 1))], data, max_seq_length=8, pad_token_id=9)
    assert batch.input_ids.tolist() == [[0, 1, 2, 100, 101, 102, 9, 9]]
    assert batch.labels.tolist() == [[1, 2, IGNORE, 101, 102, IGNORE, IGNORE, IGNORE]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2]]
    assert batch.real_lengths.tolist() == [6]
    assert {array.dtype for array in (batch.input_ids, batch.labels, batch.position_ids)} == {
        np.dtype("int32")
    }


def test_a_document_packed_alone_is_the_same_as_unpacked() -> None:
    data = dataset([7, 2, 8])
    for packing in (False, True):
        rows = stream(data, packing=packing, global_batch_size=1)
        alone = next(row for step0 in range(3) for row in rows.batch(step0) if row.records == (0,))
        batch = build_microbatch([alone], data, max_seq_length=8, pad_token_id=9)
        assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 9]]
        assert batch.labels.tolist() == [[1, 2, 3, 4, 5, 6, IGNORE, IGNORE]]
        assert batch.real_lengths.tolist() == [7]


def test_only_trained_tokens_are_labels() -> None:
    data = TokenizedDataset.of([[5, 6, 7, 8]], [[True, False, True, False]])
    batch = build_microbatch([Row(0, 0, (0,))], data, max_seq_length=4, pad_token_id=9)
    assert batch.labels.tolist() == [[IGNORE, 7, IGNORE, IGNORE]]
    assert data.valid.tolist() == [1]  # nothing predicts a document's first token


def test_fewer_rows_than_a_batch() -> None:
    data = dataset([3, 4, 5])
    rows = stream(data, global_batch_size=4)
    assert rows.steps_per_epoch(0) == 1
    batch = rows.batch(0)
    assert [bool(row.records) for row in batch] == [True, True, True, False]
    assert batch[3] == Row(-1, 0, ())
    assert rows.counts(0) == (3, 3, 12, 2 + 3 + 4)
    # More lanes than rows: the last lane trains on an empty row, and nothing of it counts.
    [filler] = loaders(rows, 4, 1)[3].step(0)
    assert (filler.labels == IGNORE).all()
    assert filler.real_lengths.tolist() == [0]
    assert filler.document_ids.tolist() == [[0] * 8]
    assert filler.position_ids.tolist() == [list(range(8))]
    assert "last batch of epoch 0: 1 of its rows is an empty filler" in rows.describe()


def test_zero_steps_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        stream(dataset([3, 4, 5]), global_batch_size=4, last_batch="drop")
    assert str(caught.value) == (
        "0 steps: epoch 0 has 3 rows (3 records), fewer than train.global_batch_size 4, and data.last_batch "
        "is drop; use data.last_batch: fill, or a global batch of at most 3"
    )


def test_dropped_rows_are_told() -> None:
    rows = stream(dataset([3, 4, 5, 6, 7]), global_batch_size=2, last_batch="drop")
    assert rows.describe() == [
        "rows: 5 of 8 tokens in epoch 0, "
        f"{1 - rows.counts(0).tokens / 32 - rows.counts(1).tokens / 32:.1%} padding (packing is off)",
        "steps: 2 in epoch 0 with 2 rows a step",
        "last batch of epoch 0: dropped, with 1 row",
    ]


def test_refused_settings() -> None:
    with pytest.raises(UserError, match=r'data\.last_batch is "keep"; use "fill" or "drop"'):
        stream(dataset([3]), last_batch="keep")
    with pytest.raises(UserError, match=r"train\.global_batch_size is 0; use at least 1"):
        stream(dataset([3]), global_batch_size=0)
    rows = stream(dataset([3] * 9), global_batch_size=6)
    expected = (
        r"train\.global_batch_size 6 is not a multiple of train\.micro_batch_size 2 x 2 lanes = 4; try 4 or 8"
    )
    with pytest.raises(UserError, match=expected):
        LaneLoader(rows, rows.dataset, lane=0, num_lanes=2, micro_batch_size=2)
    with pytest.raises(UserError, match="= 8; try 8"):
        LaneLoader(rows, rows.dataset, lane=0, num_lanes=4, micro_batch_size=2)
