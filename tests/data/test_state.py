"""Where a run stands in its data: exact continuation in any layout, refusals that name both values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rankloom.data import Counts, GlobalStream, LaneLoader, LaneReader, Position
from rankloom.data.dataset_identity import DatasetIdentity
from rankloom.data.state import DataState, LaneState
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from tests.data.chats import dataset, stream

NOTHING = Counts(0, 0, 0, 0)
SIXTEEN = [2] * 16


def loaders(rows: GlobalStream, num_lanes: int, micro: int = 1) -> list[LaneLoader]:
    return [
        LaneLoader(rows, rows.dataset, lane=lane, num_lanes=num_lanes, micro_batch_size=micro)
        for lane in range(num_lanes)
    ]


def state_of(rows: GlobalStream, num_lanes: int, step: int, *, micro: int = 1) -> DataState:
    """After ``step`` steps from the start, through JSON."""
    dealer = loaders(rows, num_lanes, micro)[0].dealer
    consumed = NOTHING
    for step0 in range(step):
        consumed = Counts(*(a + b for a, b in zip(consumed, rows.counts(step0), strict=True)))
    lanes = [LaneState.of(rows, dealer, lane=lane, step=step) for lane in range(num_lanes)]
    state = DataState.of(rows, step=step, consumed=consumed, lanes=lanes)
    again = DataState.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    return again


def ids(rows: GlobalStream, steps: Iterable[int]) -> list[list[int]]:
    return [[row.row_id for row in rows.batch(step0)] for step0 in steps]


def records(rows: GlobalStream, steps: Iterable[int]) -> list[int]:
    return [record for step0 in steps for row in rows.batch(step0) for record in row.records]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 2), (2, 4), (4, 1), (2, 2)])
def test_lanes_may_change(before: int, after: int) -> None:
    """Rows 0..15, 4 a step: after 0..3 come 4..7, whoever trains on them."""
    saved = state_of(stream(dataset(SIXTEEN), global_batch_size=4), before, 1)
    assert saved.position == Position(step=1, epoch=0, row=4, rows=4)
    fresh = stream(dataset(SIXTEEN), global_batch_size=4)
    restored = saved.restore(fresh, num_lanes=after)
    dealt = [[m.rows[0].row_id for m in loader.step(1)] for loader in loaders(restored.stream, after)]
    assert sorted(row for lane in dealt for row in lane) == [4, 5, 6, 7]
    assert dealt == [[row for row in range(4, 8) if row % after == lane] for lane in range(after)]
    assert records(restored.stream, range(1, 4)) == records(fresh, range(1, 4))
    told = f"the data was saved with {before} lane{'s' * (before > 1)}, now there are {after} lane"
    assert [note.startswith(told) for note in restored.notes] == [True] * (before != after)


def test_a_state_for_each_lane_with_its_own_place() -> None:
    """4 ranks with TP 1 and 4 weight shards are 4 lanes; each goes on where it would have gone on anyway."""
    layout = GTPParallelLayout.resolve(world_size=4, tensor_parallel_num_weight_shards=4)
    rows = stream(dataset([2] * 80), global_batch_size=8)
    saved = state_of(rows, layout.batch_parallel_size, 5)
    assert [lane.last_row for lane in saved.lanes] == [36, 37, 38, 39]
    assert len({lane.last_row for lane in saved.lanes}) == 4
    restored = saved.restore(stream(dataset([2] * 80), global_batch_size=8), num_lanes=4)
    assert restored.notes == ()
    for before, after in zip(loaders(rows, 4), loaders(restored.stream, 4), strict=True):
        assert [before.rows(step0) for step0 in range(5, 30)] == [after.rows(step0) for step0 in range(5, 30)]


def test_tensor_and_context_ranks_share_a_lane_state() -> None:
    """8 ranks with TP 2 and CP 2: two lanes, two states."""
    layout = GTPParallelLayout.resolve(world_size=8, tensor_model_parallel_size=2, context_parallel_size=2)
    rows = stream(dataset(SIXTEEN), global_batch_size=4)
    assert len(state_of(rows, layout.batch_parallel_size, 2).lanes) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("step", [3, 4, 5, 8])
def test_at_the_border_of_an_epoch_with_any_number_of_loader_processes(step: int, num_workers: int) -> None:
    """Four steps an epoch: step 4 ends epoch 0, step 8 epoch 1."""
    whole = stream(dataset(SIXTEEN), global_batch_size=4)
    restored = state_of(whole, 2, step).restore(stream(dataset(SIXTEEN), global_batch_size=4), num_lanes=1)
    [source] = loaders(restored.stream, 1)
    with LaneReader(source, first=step, last=13, num_workers=num_workers) as reader:
        for step0 in range(step, 14):
            trained = tuple(row for microbatch in reader.take(step0)[0] for row in microbatch.rows)
            assert trained == whole.batch(step0)


def test_a_resume_of_a_resume() -> None:
    whole = stream(dataset([3, 5, 2, 7] * 10), packing="first_fit_decreasing", packing_window=8)
    rows, step = whole, 0
    for lanes, more in ((2, 3), (4, 4), (1, 2), (2, 7)):
        step += more
        rows = state_of(whole, lanes, step).restore(whole, num_lanes=lanes).stream
        consumed = sum((whole.counts(s).rows for s in range(step)), start=0)
        assert rows.origin.rows == consumed
        dealer = loaders(rows, 2)[0].dealer
        lane_states = [LaneState.of(rows, dealer, lane=lane, step=step) for lane in range(2)]
        assert [lane.last_row for lane in lane_states] == [None, None]
        counted = Counts(consumed, 0, 0, 0)
        again = DataState.of(rows, step=step, consumed=counted, lanes=lane_states)
        assert again.position == rows.origin
    assert [rows.batch(step0) for step0 in range(step, step + 20)] == [
        whole.batch(step0) for step0 in range(step, step + 20)
    ]


@pytest.mark.parametrize(
    ("batch", "steps"), [(8, [[4, 5, 6, 7, 8, 9, 10, 11]]), (2, [[4, 5], [6, 7], [8, 9]])]
)
def test_another_global_batch_continues_with_the_next_row_and_says_so(
    batch: int, steps: list[list[int]]
) -> None:
    saved = state_of(stream(dataset(SIXTEEN), global_batch_size=4), 2, 1)
    restored = saved.restore(stream(dataset(SIXTEEN), global_batch_size=batch), num_lanes=2)
    assert ids(restored.stream, range(1, 1 + len(steps))) == steps
    assert restored.notes == (
        f"train.global_batch_size was 4, now it is {batch}; rows are cut so from here on",
    )
    seen = records(restored.stream, range(1, restored.stream.num_steps(1)))
    assert sorted(seen + records(stream(dataset(SIXTEEN), global_batch_size=4), [0])) == list(range(16))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 1}, "data.seed was 0, now it is 1"),
        ({"packing": True}, "data.packing was none, now it is greedy"),
        ({"max_seq_length": 9}, "data.max_seq_length was 8, now it is 9"),
        (
            {"packing": "first_fit_decreasing", "seed": 3},
            "data.packing was none, now it is first_fit_decreasing; data.packing_window was None, now it is "
            "1024; data.seed was 0, now it is 3",
        ),
    ],
)
def test_another_order_is_refused(changes: dict[str, Any], expected: str) -> None:
    saved = state_of(stream(dataset(SIXTEEN), global_batch_size=4), 2, 1)
    other = stream(dataset(SIXTEEN), **{"global_batch_size": 4, **changes})
    assert saved.changed_keys(other) == [part.split()[0] for part in expected.split("; ")]
    with pytest.raises(UserError) as caught:
        saved.restore(other, num_lanes=2)
    assert str(caught.value) == (
        f"the run cannot continue in its data: {expected}. Set it back to continue exactly, or name "
        f"{', '.join(saved.changed_keys(other))} in checkpoint.allow_changes to begin the data anew"
    )
    restored = saved.restore(other, num_lanes=2, restart=True)
    assert restored.stream.origin == Position(step=1, epoch=1, row=0, rows=4)
    assert restored.notes == (f"the data is started anew with epoch 1: {expected}",)
    assert records(restored.stream, [1]) == records(other, [other.num_steps(1)])


def test_other_data_is_refused_by_both_names() -> None:
    saved = state_of(stream(dataset(SIXTEEN), global_batch_size=4), 1, 1)
    other = stream(dataset([2] * 12), global_batch_size=4)
    mine, theirs = (DatasetIdentity.of(dataset(lengths)).fingerprint[:12] for lengths in ([2] * 12, SIXTEEN))
    with pytest.raises(UserError) as caught:
        saved.restore(other, num_lanes=1)
    assert (
        f"it was saved with the data memory (16 records, fingerprint {theirs}), now it is memory (12 "
        f"records, fingerprint {mine})"
    ) in str(caught.value)


def test_tokens_and_masks_are_part_of_the_data() -> None:
    first = DatasetIdentity.of(dataset(SIXTEEN)).fingerprint
    assert DatasetIdentity.of(dataset(SIXTEEN)).fingerprint == first
    assert DatasetIdentity.of(dataset(SIXTEEN, trained_from=0)).fingerprint != first
    assert DatasetIdentity.of(dataset([2] * 15 + [3])).fingerprint != first


def test_lanes_that_do_not_belong_together() -> None:
    rows = stream(dataset(SIXTEEN), global_batch_size=4)
    dealer = loaders(rows, 2)[0].dealer
    first, second = (LaneState.of(rows, dealer, lane=lane, step=2) for lane in range(2))
    late = LaneState.of(rows, dealer, lane=1, step=3)
    consumed = Counts(8, 8, 16, 8)
    for lanes in ([first], [first, first], [first, late], []):
        with pytest.raises(ValueError, match="after step 2 each lane is needed once, not"):
            DataState.of(rows, step=2, consumed=consumed, lanes=lanes)
    with pytest.raises(ValueError, match="4 rows are counted as consumed, the stream is at"):
        DataState.of(rows, step=2, consumed=Counts(4, 4, 8, 4), lanes=[first, second])


def test_a_state_that_is_none() -> None:
    content = state_of(stream(dataset(SIXTEEN), global_batch_size=4), 2, 1).to_json()
    for damage in ({"format": 2}, {"position": {}}, {"position": {"epoch": 1, "stop": 2}}, {"lanes": []}):
        with pytest.raises(UserError, match="data state"):
            DataState.from_json(content | damage)
    with pytest.raises(UserError, match="not a data state, or it is damaged"):
        DataState.from_json({})


def test_batches_larger_than_what_is_left_are_refused_not_waited_for() -> None:
    """No epoch has 20 rows: looking for one would never end."""
    saved = state_of(stream(dataset(SIXTEEN), global_batch_size=4), 1, 1)
    fresh = stream(dataset(SIXTEEN), global_batch_size=16, last_batch="drop")
    restored = saved.restore(fresh, num_lanes=1).stream
    assert ids(restored, [1]) == [list(range(4, 20))]  # the rest of epoch 0 is less than a batch
    assert restored.batch(1)[0].epoch == 1
    restored.batch_sizes = type(restored.batch_sizes)(20)
    restored._begin(saved.position)  # as if 20 had passed the first look
    with pytest.raises(UserError, match="0 steps: epoch"):
        restored.batch(1)


def test_a_moved_file_is_the_same_data(tmp_path: Path) -> None:
    from tests.data.test_prepare import chat_file, prepared

    chat_file(tmp_path)
    first = DatasetIdentity.of(prepared(tmp_path, cache_dir=tmp_path / "a").dataset)
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes((tmp_path / "chats.jsonl").read_bytes())
    second = DatasetIdentity.of(prepared(tmp_path, train=str(moved), cache_dir=tmp_path / "b").dataset)
    assert first.fingerprint == second.fingerprint
    assert first.source != second.source
