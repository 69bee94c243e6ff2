from __future__ import annotations

from typing import Any

from rankloom.comm.activity import Activity
from rankloom.comm.diagnosis import RankState, diagnose
from rankloom.layout import GTPParallelLayout

LAYOUT = GTPParallelLayout.resolve(
    world_size=4, tensor_model_parallel_size=2, tensor_parallel_num_weight_shards=4
)  # tp groups [0, 1] [2, 3], gtp_remat groups [0, 2] [1, 3]


def snapshot(wait: tuple[str, int] | None, **launched: int) -> dict[str, Any]:
    waiting = {"group": wait[0], "what": "gather", "seq": wait[1], "since_s": 9.0} if wait else None
    counts = {group: [number, "gather"] for group, number in launched.items()}
    return {"phase": "step 3", "waiting": waiting, "launched": counts, "frame": "a.py:1 in f", "time": 0.0}


def report(*snapshots: dict[str, Any] | None, silent: dict[int, float] | None = None) -> list[str]:
    states = [RankState(rank, taken, (silent or {}).get(rank)) for rank, taken in enumerate(snapshots)]
    return diagnose(states, LAYOUT, timeout_s=5).splitlines()


def test_a_cascade_ends_at_its_cause() -> None:
    lines = report(
        snapshot(("tp", 5), tp=5, gtp_remat=7),
        snapshot(("gtp_remat", 7), tp=4, gtp_remat=7),
        snapshot(("tp", 5), tp=5, gtp_remat=7),
        snapshot(None, tp=4, gtp_remat=6),
    )
    assert lines[1].startswith("rank 3 (tp 1, gtp_seq 0, gtp_batch 1, ")
    assert lines[1].endswith("did not arrive; it is in step 3, at a.py:1 in f")
    assert "waits for number 5 of tp [0, 1]: gather in step 3, at a.py:1 in f; missing: rank 1" in lines[2]
    assert "waits for number 7 of gtp_remat [1, 3]" in lines[3]
    assert "missing: rank 3" in lines[3]
    assert len(lines) == 5


def test_a_circle_is_a_deadlock() -> None:
    lines = report(
        snapshot(("tp", 5), tp=5, gtp_remat=6),
        snapshot(("gtp_remat", 7), tp=4, gtp_remat=7),
        snapshot(("gtp_remat", 7), tp=4, gtp_remat=7),
        snapshot(("tp", 5), tp=5, gtp_remat=6),
    )
    assert lines[1].startswith("deadlock:")
    assert [line.rpartition("; ")[2] for line in lines[2:]] == [
        f"missing: rank {rank}" for rank in (1, 3, 0, 2)
    ]


def test_a_rank_that_fell_silent_after_it_arrived_is_the_cause() -> None:
    taken = snapshot(("tp", 5), tp=5)
    lines = report(taken, taken, taken, taken, silent={1: 12.0})
    assert lines[1].startswith("rank 1 (")
    assert lines[1].endswith("shows no sign of life for 12 s; last seen in step 3, at a.py:1 in f")
    assert lines[2].startswith("rank 0 (")
    assert lines[2].endswith("missing: rank 1")


def test_a_rank_never_heard_from() -> None:
    assert report(snapshot(("tp", 1), tp=1), None, silent={1: 5.0})[1].endswith("was never heard from")


def test_a_different_launch_order_is_pointed_out() -> None:
    other = snapshot(("tp", 5), tp=5) | {"launched": {"tp": [5, "reduce"]}}
    lines = report(snapshot(("tp", 5), tp=5), other)
    assert "every rank has arrived" in lines[1]
    assert lines[2] == "number 5 of tp is gather on rank 0 but reduce on rank 1"


def test_activity_counts_per_group_and_knows_its_place() -> None:
    activity = Activity()
    assert [activity.launched("tp", "a"), activity.launched("tp", "b"), activity.launched("lane", "c")] == [
        1,
        2,
        1,
    ]
    with activity.waiting("tp", "b", 2):
        inside: Any = activity.snapshot()
    assert (inside["waiting"]["group"], inside["waiting"]["seq"]) == ("tp", 2)
    assert inside["launched"] == {"tp": [2, "b"], "lane": [1, "c"]}
    assert "test_diagnosis.py:" in inside["frame"]
    assert "in test_activity_counts_per_group_and_knows_its_place" in inside["frame"]
    assert activity.snapshot()["waiting"] is None
