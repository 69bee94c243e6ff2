"""Actors of ranks: what each one is told, how it is called, and how all end at the first real failure."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import ray

from rankloom.driver.connection import RayCluster
from rankloom.driver.faults import RankLostError
from rankloom.driver.gang import Gang
from rankloom.driver.group import Patience
from rankloom.driver.placement import Placement
from rankloom.driver.ports import listening_socket
from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from tests.driver.ray import workers
from tests.driver.ray.conftest import LAYOUT, StartGang
from tests.driver.ray.processes import call, is_running, process_ids, submit, title
from tests.driver.test_ports import stretch_of_free_ports
from tests.train.processes import until


def test_ranks_know_themselves_and_are_told_apart(start_gang: StartGang, tmp_path: Path) -> None:
    gang = start_gang(workers.small)
    assert call(gang, "add", 10, other=5) == [15, 16, 17, 18]
    assert [place.rank for place in call(gang, "place")] == [0, 1, 2, 3]
    napping = submit(gang, "nap", 0.3)
    pids = [pid for pid in process_ids(gang) if is_running(pid)]
    assert [title(pid).split(".")[0] for pid in pids] == [
        "ray::Rank0",
        "ray::Rank1",
        "ray::Rank2",
        "ray::Rank3",
    ]
    assert gang.gather(napping, [3, 1]) == [3, 1]  # in the order asked for
    assert all(0.3 <= seconds < 30 for seconds in gang.seconds(napping).values())
    assert call(gang, "working_folder") == [os.getcwd()] * 4
    assert call(gang, "environment", "OMP_NUM_THREADS")[0] == {"OMP_NUM_THREADS": "1"}
    assert (tmp_path / "rank-2.log").read_text() == "rank 2 is there\n"
    gang.close()
    until(lambda: not any(map(is_running, pids)), timeout_s=10)


def test_references_arrive_as_what_they_refer_to(start_gang: StartGang) -> None:
    """Large values travel by reference; those inside other arguments stay references."""
    gang = start_gang(workers.small)
    assert [gang.share(value) for value in (3, "text", None)] == [3, "text", None]
    shared, reference = gang.share([0] * 10_000), ray.put({"ids": 1})
    assert isinstance(shared, ray.ObjectRef)
    assert gang.share(reference) is reference
    given, named = call(gang, "types", shared, [reference], other=reference, ranks=[2])[0]
    assert (given, named) == (["list", "list"], {"other": "dict"})
    first = gang.submit(0, "add", (5,), {})
    assert call(gang, "add", first.value, ranks=[3]) == [8]  # another rank's result, not seen by the driver


def test_a_stopped_rank_ends_with_the_others(start_gang: StartGang) -> None:
    """It hears nobody, and Ray alone would leave it."""
    gang = start_gang(workers.small)
    pids = process_ids(gang)
    os.kill(pids[0], signal.SIGSTOP)
    handles = submit(gang, "nap", 60.0, ranks=[0, 1, 2]) | submit(gang, "fail", ranks=[3])
    since = time.monotonic()
    with pytest.raises(RunError, match=r"rank 3 .*a bad thing"):
        gang.gather(handles, [])
    assert time.monotonic() - since < 30
    assert not any(map(is_running, pids))


def test_a_call_that_nobody_waits_for_is_watched_too(start_gang: StartGang) -> None:
    gang = start_gang(workers.small)
    submit(gang, "refuse", ranks=[2])
    with pytest.raises(UserError, match=r"data\.train names no file"):
        gang.gather(submit(gang, "nap", 60.0, ranks=[1]), [1])


def test_the_first_real_failure_wins_and_all_end(start_gang: StartGang, tmp_path: Path) -> None:
    """Rank 0 only says that a peer went away, and says it first."""
    gang = start_gang(workers.small)
    pids = process_ids(gang)
    handles = submit(gang, "lose_peer", 0.0, ranks=[0]) | submit(gang, "fail", ranks=[3])
    handles |= submit(gang, "nap", 60.0, ranks=[1, 2])
    since = time.monotonic()
    with pytest.raises(RunError) as caught:
        gang.gather(handles, [0, 1, 2, 3])
    assert time.monotonic() - since < 30
    message = str(caught.value)
    coordinates = LAYOUT.coords(3).describe()
    assert message.startswith(f"rank 3 ({coordinates}) failed in fail, step 4: backward, on node ")
    assert "ValueError: a bad thing" in message.splitlines()[0]
    assert "  about to fail" in message
    assert f"its log: {tmp_path / 'rank-3.log'}" in message
    assert not isinstance(caught.value, RankLostError)
    until(lambda: not any(map(is_running, pids)), timeout_s=10)
    with pytest.raises(RunError, match="the gang is over since rank 3"):
        submit(gang, "nap", 0.0)


def test_a_killed_rank_is_a_loss_with_its_coordinates(start_gang: StartGang, tmp_path: Path) -> None:
    gang = start_gang(workers.small)
    pids = process_ids(gang)
    handles = submit(gang, "nap", 60.0)
    time.sleep(0.3)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankLostError) as caught:
        gang.gather(handles, [0])
    assert caught.value.rank == 1
    assert caught.value.lost_nodes == ()
    assert f"rank 1 ({LAYOUT.coords(1).describe()}) failed in nap, step 3: forward" in str(caught.value)
    assert "its process ended without a message" in str(caught.value)
    until(lambda: not any(map(is_running, pids)), timeout_s=10)
    again = start_gang(workers.small, appends=True)  # in the same placement
    assert call(again, "add", 1) == [1, 2, 3, 4]
    assert (tmp_path / "rank-1.log").read_text() == "rank 1 is there\n" * 2


@pytest.mark.parametrize("behind_first", [True, pytest.param(False, marks=pytest.mark.long)])
def test_ranks_that_do_not_come_back_are_named(start_gang: StartGang, behind_first: bool) -> None:
    """No watchdog looks at a call that is no collective."""
    gang = start_gang(workers.small)
    pids = process_ids(gang)
    if behind_first:
        assert gang.gather(submit(gang, "nap", 1.5), [0], patience=Patience(1.0, behind_first=True)) == [0]
    handles = submit(gang, "nap", 60.0, ranks=[1, 3]) | submit(gang, "nap", 0.0, ranks=[0, 2])
    with pytest.raises(RankLostError) as caught:
        gang.gather(handles, [0], patience=Patience(1.0, behind_first=behind_first))
    first = str(caught.value).splitlines()[0]
    assert first.startswith(
        f"rank 1 ({LAYOUT.coords(1).describe()}) failed in nap, step 3: forward, on node "
    )
    since = " after the first that did" if behind_first else ""
    assert first.endswith(f": ranks 1, 3 did not come back from nap within 1 s{since}")
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [
        ("refuse", UserError, "data.train names no file"),
        pytest.param("raise_odd", RunError, "Odd: odd", marks=pytest.mark.long),
        pytest.param("leave", RunError, r"failed in leave, .*: SystemExit: 3", marks=pytest.mark.long),
    ],
)
def test_what_a_rank_raises_arrives(
    start_gang: StartGang, method: str, kind: type[Exception], words: str
) -> None:
    gang = start_gang(workers.small)
    with pytest.raises(kind, match=words):
        call(gang, method)


@pytest.mark.long
def test_a_worker_that_cannot_be_built_is_named(start_gang: StartGang) -> None:
    with pytest.raises(RunError, match=r"rank 1 .*ValueError: no worker here"):
        start_gang(workers.fails_on_rank_1)


@pytest.mark.long
def test_two_gangs_started_back_to_back_have_two_ports(cluster: RayCluster, tmp_path: Path) -> None:
    """Both are up before either is called, each with a store of its own; sums stay apart. The second may use
    two ports, of which another process has the first."""
    layout = GTPParallelLayout.resolve(world_size=2)
    ports = stretch_of_free_ports()
    with (
        Placement.make(cluster.nodes(), layout, device="cpu") as one,
        Placement.make(cluster.nodes(), layout, device="cpu") as other,
        listening_socket("127.0.0.1", ports=ports),
        Gang.start(one, workers.meeting, (layout,), log_folder=tmp_path / "one") as first,
        Gang.start(other, workers.meeting, (layout,), log_folder=tmp_path / "other", ports=ports) as second,
    ):
        assert call(second, "store") == [("127.0.0.1", str(ports[1]))] * 2
        [(address, port), _] = call(first, "store")
        assert address == "127.0.0.1"
        assert int(port) not in ports
        sums = submit(first, "sum", 1.0), submit(second, "sum", 10.0)
        assert first.gather(sums[0], [0, 1]) == [3.0, 3.0]
        assert second.gather(sums[1], [0, 1]) == [30.0, 30.0]


@pytest.mark.long
def test_no_free_port_is_the_users_message(cluster: RayCluster, placement: Placement, tmp_path: Path) -> None:
    ports = stretch_of_free_ports()[:1]
    with listening_socket("127.0.0.1", ports=ports), pytest.raises(RunError, match="none of the ports"):
        Gang.start(placement, workers.small, log_folder=tmp_path, ports=ports)


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_stopped_rank_is_named_by_the_watchdog(start_gang: StartGang, stopped: int) -> None:
    """Also rank 0, with which the store would be if it were not a process of its own."""
    gang = start_gang(workers.meeting, LAYOUT, 3.0, rendezvous=True)
    pids = process_ids(gang)
    assert call(gang, "sum", 1.0) == [10.0] * 4
    os.kill(pids[stopped], signal.SIGSTOP)
    handles = submit(gang, "sum", 1.0)
    since = time.monotonic()
    with pytest.raises(RankLostError) as caught:
        gang.gather(handles, [0])
    assert time.monotonic() - since < 45
    assert "the ranks wait for each other for more than comm.timeout_s = 3 s" in str(caught.value)
    assert f"rank {stopped} ({LAYOUT.coords(stopped).describe()}) " in str(caught.value)
    assert f"missing: rank {stopped}" in str(caught.value)
    until(lambda: not any(map(is_running, pids)), timeout_s=15)
