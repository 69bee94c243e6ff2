"""Rows made in processes: the same rows and states, errors by name, nothing left behind."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from rankloom.config import resolve
from rankloom.data.energon.loading import EnergonLoader, LaneStep
from rankloom.data.energon.prepare import EnergonRunData, prepare_energon
from rankloom.data.energon.remote import RemoteVirtualLanes
from rankloom.data.energon.state import EnergonState
from rankloom.data.rows import Counts
from rankloom.errors import RunError, UserError
from rankloom.records.energon import EnergonData
from tests.data.energon import datasets

ROWS, VIRTUAL_LANES = 8, 8


def prepared(folder: Path, source: EnergonData, num_workers: int, **data: Any) -> EnergonRunData:
    config = {
        "model": {"config": {"model_type": "llama", "vocab_size": 300}},
        "data": {
            "source": "energon",
            "path": source.path,
            "num_virtual_lanes": VIRTUAL_LANES,
            "packing_window": 4,
            "max_seq_length": 64,
            "num_workers": num_workers,
            "cache_dir": str(folder / "cache"),
            **data,
        },
        "train": {"global_batch_size": ROWS, "max_steps": 1},
        "cluster": {"world_size": 1},
    }
    return prepare_energon(resolve(config))


def loader(data: EnergonRunData, *, lane: int = 0, num_lanes: int = 1) -> EnergonLoader:
    return EnergonLoader(data, lane=lane, num_lanes=num_lanes, micro_batch_size=1)


def taken(source: EnergonLoader, steps: range) -> list[LaneStep]:
    return [source.take(step0)[0] for step0 in steps]


def assert_same(found: list[LaneStep], expected: list[LaneStep]) -> None:
    for got, want in zip(found, expected, strict=True):
        for mine, its in zip(got.microbatches, want.microbatches, strict=True):
            assert mine.rows == its.rows
            for name in ("input_ids", "labels", "position_ids", "document_ids"):
                assert np.array_equal(getattr(mine, name), getattr(its, name))
        assert (got.counts, got.skipped, got.places, got.numbers) == (
            *(want.counts, want.skipped, want.places, want.numbers),
        )
        assert got.epochs == pytest.approx(want.epochs, rel=1e-12)  # added up in another order


def state_of(data: EnergonRunData, source: EnergonLoader, step: int) -> EnergonState:
    return EnergonState.of(
        [source.state(step)], step=step, consumed=Counts(step * ROWS, 0, 0, 0), settings=data.order
    )


@pytest.mark.parametrize("num_workers", [1, pytest.param(3, marks=pytest.mark.long)])
def test_rows_and_states_are_the_same(jsonl: EnergonData, tmp_path: Path, num_workers: int) -> None:
    """8 virtual lanes over 3 processes; read ahead, saved, and gone on with in a thread and the other way."""
    threads, processes = (prepared(tmp_path, jsonl, number) for number in (0, num_workers))
    assert threads.order == processes.order
    assert threads.fingerprint == processes.fingerprint
    expected = taken(loader(threads), range(16))
    with closing(loader(processes)) as with_them:
        assert isinstance(with_them.lanes, RemoteVirtualLanes)
        pids = with_them.lanes.pids
        assert len(pids) == num_workers
        with_them.look(0)
        with_them.read_ahead(first=0, last=30)
        assert_same(taken(with_them, range(8)), expected[:8])
        saved = state_of(processes, with_them, 8)
    with_them.close()  # once more
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    in_a_thread = loader(threads)
    in_a_thread.restore(saved)
    assert_same(taken(in_a_thread, range(8, 12)), expected[8:12])
    with closing(loader(processes)) as again:
        again.restore(state_of(threads, in_a_thread, 12))
        assert_same(taken(again, range(12, 16)), expected[12:])


def test_a_bad_sample_is_named_at_its_step(tmp_path: Path) -> None:
    bad = {"messages": [{"role": "user", "content": "hello"}]}
    contents = [bad if number == 20 else datasets.chat(number) for number in range(40)]
    data = prepared(tmp_path, datasets.jsonl(tmp_path, contents), 2)
    with (
        closing(loader(data)) as with_them,
        pytest.raises(UserError, match=r"^chats\.jsonl, sample 20: no assistant turn: roles are user"),
    ):
        taken(with_them, range(12))


@pytest.mark.long
def test_a_process_that_is_killed_is_named(jsonl: EnergonData, tmp_path: Path) -> None:
    with_them = loader(prepared(tmp_path, jsonl, 2), lane=1, num_lanes=2)
    assert isinstance(with_them.lanes, RemoteVirtualLanes)
    with_them.take(0)
    os.kill(with_them.lanes.pids[1], signal.SIGKILL)
    with pytest.raises(RunError) as caught:
        taken(with_them, range(1, 4))
    assert str(caught.value) == (
        "lane 1: loader process 2 of 2 (data.num_workers) was ended by SIGKILL while it made rows 8 to 15"
    )
    with_them.close()


def test_no_more_processes_than_virtual_lanes(jsonl: EnergonData, tmp_path: Path) -> None:
    data = prepared(tmp_path, jsonl, 5)
    few = loader(data, lane=3, num_lanes=4)
    assert isinstance(few.lanes, RemoteVirtualLanes)
    assert len(few.lanes.pids) == 2
    few.close()  # before they are even started


@pytest.mark.long
def test_other_lanes_go_on(tars: EnergonData, tmp_path: Path) -> None:
    """Saved under 2 lanes of 2 processes each, gone on with under 4 lanes without."""
    threads, processes = (prepared(tmp_path, tars, number) for number in (0, 2))
    whole = taken(loader(threads), range(10))
    two = [loader(processes, lane=lane, num_lanes=2) for lane in range(2)]
    for source in two:
        taken(source, range(6))
    saved = EnergonState.of(
        [source.state(6) for source in two],
        step=6,
        consumed=Counts(6 * ROWS, 0, 0, 0),
        settings=processes.order,
    )
    for source in two:
        source.close()
    four = [loader(threads, lane=lane, num_lanes=4) for lane in range(4)]
    for source in four:
        source.restore(saved)
    for step0 in range(6, 10):
        rows = [place for source in four for place in source.take(step0)[0].places]
        assert sorted(rows, key=lambda place: place["row"]) == whole[step0].places
