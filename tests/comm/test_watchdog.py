"""The watchdog among four real processes that pretend to communicate; it ends them, so no pool here."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankloom.layout import GTPParallelLayout
from tests.pool import RankPool

LAYOUT = GTPParallelLayout.resolve(
    world_size=4, tensor_model_parallel_size=2, tensor_parallel_num_weight_shards=4
)  # tp groups [0, 1] [2, 3], gtp_remat groups [0, 2] [1, 3]
TIMEOUT_S = 1.5
Program = Callable[[Any, int], None]


def wait_in(activity: Any, group: str) -> None:
    seq = activity.launched(group, "gather of the weights")
    with activity.waiting(group, "gather of the weights", seq):
        time.sleep(30)


def hang_rank_3(activity: Any, rank: int) -> None:
    activity.phase = "step 3: forward, microbatch 1"
    if rank == 3:
        read_forever()
    wait_in(activity, "world")


def read_forever() -> None:
    time.sleep(30)


def stop_rank_2(activity: Any, rank: int) -> None:
    activity.phase = "step 4: backward, microbatch 0"
    if rank == 2:
        time.sleep(0.3)  # past the first heartbeat
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_in(activity, "world")


def deadlock(activity: Any, rank: int) -> None:
    wait_in(activity, "tp" if rank in (0, 3) else "gtp_remat")


def cascade(activity: Any, rank: int) -> None:
    if rank == 3:
        read_forever()
    wait_in(activity, "tp" if rank in (0, 2) else "gtp_remat")


def finish(activity: Any, rank: int) -> None:
    time.sleep(0.1)


def file_store(path: str, rank: int) -> Any:
    from torch.distributed import FileStore

    return FileStore(path, 4)


def tcp_store(port: int, rank: int) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    return PrefixStore("run", TCPStore("127.0.0.1", port, 4, rank == 0, wait_for_workers=False))


def run_rank(
    rank: int, program: Program, make_store: Callable[[int], Any], report_file: str, start: Any
) -> None:
    from rankloom.comm.activity import Activity
    from rankloom.comm.watchdog import Watchdog

    def write(text: str) -> None:
        with Path(report_file).open("a") as file:
            file.write(f"reported by rank {rank}\n{text}\n")

    activity = Activity()
    watchdog = Watchdog(
        activity, lambda: make_store(rank), LAYOUT, rank=rank, timeout_s=TIMEOUT_S, on_failure=write
    )
    watchdog.start()
    start.wait()  # a rank that starts late would be taken for one that hangs
    program(activity, rank)
    watchdog.stop()


@pytest.fixture
def report_of(rank_pool: RankPool, tmp_path: Path) -> Callable[..., str]:
    """Runs a program on four ranks; the report. Depends on the pool for its preloaded forkserver."""

    def run(program: Program, *, tcp: bool = False, stopped: tuple[int, ...] = ()) -> str:
        make = (
            functools.partial(tcp_store, _free_port())
            if tcp
            else functools.partial(file_store, str(tmp_path / "store"))
        )
        report = tmp_path / "report"
        context = multiprocessing.get_context("forkserver")
        start = context.Barrier(4)
        arguments = [(rank, program, make, str(report), start) for rank in range(4)]
        processes = [context.Process(target=run_rank, args=each, daemon=True) for each in arguments]
        for process in processes:
            process.start()
        for rank, process in enumerate(processes):
            process.join(0.1 if rank in stopped else 15)
            assert (process.exitcode is None) == (rank in stopped)
            process.kill()
        return report.read_text() if report.exists() else ""

    return run


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("tcp", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_hung_rank_is_named_with_its_place(report_of: Callable[..., str], tcp: bool) -> None:
    report = report_of(hang_rank_3, tcp=tcp)
    assert report.count("reported by") == 1
    line = next(line for line in report.splitlines() if line.startswith("rank 3 ("))
    assert "tp 1, gtp_seq 0, gtp_batch 1" in line
    assert "did not arrive; it is in step 3: forward, microbatch 1, at " in line
    assert "test_watchdog.py:" in line
    assert line.endswith("in read_forever")
    assert "ranks 0, 1, 2 wait for number 1 of world [0, 1, 2, 3]: gather of the weights" in report
    assert "missing: rank 3" in report


def test_a_stopped_rank_shows_no_sign_of_life(report_of: Callable[..., str]) -> None:
    report = report_of(stop_rank_2, stopped=(2,))
    line = next(line for line in report.splitlines() if line.startswith("rank 2 ("))
    assert "shows no sign of life for " in line
    assert "last seen in step 4: backward, microbatch 0" in line
    assert "missing: rank 2" in report


def test_a_deadlock_lists_every_wait(report_of: Callable[..., str]) -> None:
    report = report_of(deadlock)
    assert "deadlock" in report
    for rank, (group, members, missing) in enumerate(
        [("tp", [0, 1], 1), ("gtp_remat", [1, 3], 3), ("gtp_remat", [0, 2], 0), ("tp", [2, 3], 2)]
    ):
        line = next(line for line in report.splitlines() if line.startswith(f"rank {rank} ("))
        assert f"waits for number 1 of {group} {members}" in line
        assert line.endswith(f"missing: rank {missing}")


def test_a_cascade_names_its_first_cause(report_of: Callable[..., str]) -> None:
    causes = [line for line in report_of(cascade).splitlines() if "did not arrive" in line]
    assert len(causes) == 1
    assert causes[0].startswith("rank 3 (")


def test_ranks_that_finish_hear_nothing(report_of: Callable[..., str]) -> None:
    assert report_of(finish) == ""


def test_a_rank_whose_store_never_answers_ends_in_time() -> None:
    from rankloom.comm.activity import Activity
    from rankloom.comm.watchdog import Watchdog

    def connect() -> Any:
        time.sleep(0.4)  # each try takes long
        raise RuntimeError("no one listens")

    reports: list[str] = []
    ended = threading.Event()
    activity = Activity()
    watchdog = Watchdog(
        activity,
        connect,
        LAYOUT,
        rank=1,
        timeout_s=1.0,
        on_failure=reports.append,
        end=lambda code: ended.set(),
    )
    watchdog.start()
    with activity.waiting("world", "join the ranks", activity.launched("world", "join the ranks")):
        assert ended.wait(6)
    assert len(reports) == 1
    assert "waits for the others for more than comm.timeout_s = 1 s: join the ranks" in reports[0]
    assert "1 of 4 ranks is known to have arrived" in reports[0]
    assert "no one listens" in reports[0]
