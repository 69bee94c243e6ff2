"""Rows read ahead of their step: the same with a thread and with processes, bounded, ended cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankloom.data import LaneLoader, LaneReader, TokenizedDataset
from rankloom.data.prefetch import Prefetcher
from rankloom.errors import RunError
from tests.data.chats import dataset, stream

LENGTHS = [3, 5, 2, 7, 4, 8, 3, 6] * 4


class BrokenDataset(TokenizedDataset):
    """Record 5 cannot be read."""

    def ids(self, position: int) -> Any:
        if position == 5:
            raise OSError("the disk is gone")
        return super().ids(position)


def loader(lane: int = 1, data: TokenizedDataset | None = None) -> LaneLoader:
    data = dataset(LENGTHS) if data is None else data
    return LaneLoader(stream(data, packing=True), data, lane=lane, num_lanes=2, micro_batch_size=1)


def broken(lane: int) -> tuple[LaneLoader, int]:
    """A loader, and the step in which its lane meets record 5."""
    whole = dataset(LENGTHS)
    data = BrokenDataset(**{name: getattr(whole, name) for name in whole.__dataclass_fields__})
    source = loader(lane, data)
    steps = range(source.stream.num_steps(5))
    met = [s for s in steps for rows in source.rows(s) for row in rows if 5 in row.records]
    return source, met[0]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rows of lane")]


def take_all(reader: LaneReader, steps: range) -> None:
    for step0 in steps:
        reader.take(step0)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_what_is_read_is_the_same(num_workers: int) -> None:
    source = loader()
    with LaneReader(source, first=3, last=30, num_workers=num_workers) as reader:
        for step0 in range(3, 31):
            found, waited_s = reader.take(step0)
            assert waited_s >= 0
            for got, want in zip(found, source.step(step0), strict=True):
                assert got.rows == want.rows
                for name in ("input_ids", "labels", "position_ids", "document_ids"):
                    assert np.array_equal(getattr(got, name), getattr(want, name))
        pids = reader.pids
    assert len(pids) == num_workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert threads() == []


def test_two_lanes_with_two_processes_each_read_every_sample_once() -> None:
    """8 samples, 4 a step: what each lane is given is its own, and together it is all."""
    data = dataset([3] * 8)
    rows = stream(data, global_batch_size=4)
    by_lane = []
    for lane in (0, 1):
        source = LaneLoader(rows, data, lane=lane, num_lanes=2, micro_batch_size=1)
        with LaneReader(source, last=1, num_workers=2) as reader:
            given = [microbatch for step0 in (0, 1) for microbatch in reader.take(step0)[0]]
        by_lane.append([int(microbatch.input_ids[0, 0]) // 100 for microbatch in given])
    assert [len(lane) for lane in by_lane] == [4, 4]
    assert sorted(by_lane[0] + by_lane[1]) == list(range(8))


def test_it_is_a_bounded_number_of_steps_ahead() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return 10 * number

    prefetcher = Prefetcher(make, first=4, last=9, depth=3, name="rows of lane 0")
    wait_until(lambda: len(made) == 3)
    time.sleep(0.05)
    assert made == [4, 5, 6]
    assert prefetcher.take(4)[0] == 40
    wait_until(lambda: len(made) == 4)
    assert [prefetcher.take(number)[0] for number in range(5, 10)] == [50, 60, 70, 80, 90]
    assert made == [4, 5, 6, 7, 8, 9]  # and no more
    prefetcher.close()
    prefetcher.close()
    assert threads() == []


def test_the_wait_is_measured() -> None:
    def make(number: int) -> int:
        time.sleep(0.2 if number == 1 else 0)
        return number

    prefetcher = Prefetcher(make, first=0, last=1, name="rows of lane 0")
    prefetcher.take(0)
    assert prefetcher.take(1)[1] > 0.1
    prefetcher.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("lane", [0, 1])
def test_an_error_comes_at_its_step_with_lane_and_record(lane: int, num_workers: int) -> None:
    source, step = broken(lane)
    with LaneReader(source, num_workers=num_workers) as reader:
        for step0 in range(step):
            reader.take(step0)
        for _ in range(2):  # and again for whoever asks again
            with pytest.raises(RunError) as caught:
                reader.take(step)
            assert str(caught.value) == (
                f"lane {lane}: memory, record 5 cannot be read: OSError: the disk is gone"
            )
    assert threads() == []


def test_a_process_that_is_killed_is_named_at_its_step() -> None:
    with LaneReader(loader(), num_workers=2) as reader:
        reader.take(0)
        os.kill(reader.pids[1], signal.SIGKILL)
        expected = r"lane 1: loader process 2 of 2 \(data\.num_workers\) was ended by SIGKILL"
        with pytest.raises(RunError, match=expected):
            take_all(reader, range(1, 9))
    assert threads() == []


def test_leaving_in_the_middle_leaves_nothing() -> None:
    pids: list[int] = []

    def fail() -> None:
        with LaneReader(loader(), num_workers=2) as reader:
            reader.take(0)
            pids.extend(reader.pids)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert threads() == []


ENDLESS = """
import os, signal, sys, threading
from rankloom.data import LaneReader
from tests.data.test_reading_ahead import loader
reader = LaneReader(loader(), num_workers=2)
reader.take(0)
print(*reader.pids, flush=True)
if sys.argv[1] == "interrupt":
    signal.raise_signal(signal.SIGINT)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "kill" else os._exit(1)
"""


@pytest.mark.parametrize(
    "ending", ["kill", *(pytest.param(ending, marks=pytest.mark.long) for ending in ("exit", "interrupt"))]
)
def test_no_process_outlives_its_starter(ending: str) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, ending],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_process_loads_no_training_library() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers'}"
    code = f"import sys, rankloom.data.builder; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_mapped_files_are_mapped_again_not_sent(tmp_path: Path) -> None:
    import io

    from rankloom.data.messages import receive, send

    whole = dataset(LENGTHS)
    whole.all_ids.tofile(tmp_path / "ids")
    mapped = replace(whole, all_ids=np.memmap(tmp_path / "ids", dtype=np.int32, mode="r"))
    for data, is_small in ((mapped, True), (replace(mapped, all_ids=mapped.all_ids[2:]), False)):
        pipe = io.BytesIO()
        send(pipe, data.all_ids)
        assert (pipe.tell() < 4 * len(data.all_ids)) == is_small
        pipe.seek(0)
        arrived = receive(pipe)
        assert np.array_equal(arrived, data.all_ids)
        assert (arrived.filename is not None) == is_small
        with pytest.raises(EOFError):
            receive(pipe)
