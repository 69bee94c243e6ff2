"""What the controller asks of its workers, and what it refuses, on stand-ins of one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rankloom.driver import LocalGroup
from rankloom.driver.controller import SFTController
from rankloom.driver.envelopes import Envelope, refuse_wrong_lanes
from rankloom.errors import RunError
from tests.driver.engine import standins
from tests.driver.engine.standins import StandIn
from tests.runtime.runs import Recorder

LAYOUT = {"tensor_parallel_num_weight_shards": 2, "tensor_parallel_num_sequence_shards": 1}


def controlled(
    *, odd: type[StandIn] = StandIn, on: int = 3, **options: Any
) -> tuple[SFTController, dict[int, StandIn], Recorder]:
    """Four ranks, four lanes; rank ``on`` is an ``odd`` one."""
    resolved = standins.config(4, **LAYOUT)
    log: list[tuple[Any, ...]] = []
    workers = {rank: (odd if rank == on else StandIn)(resolved, rank, log) for rank in resolved.layout.ranks}
    recorder = Recorder()
    return SFTController(resolved, LocalGroup(workers), reporter=recorder, **options), workers, recorder


def test_each_lane_gets_its_batch_and_the_next_is_loaded_before_a_step() -> None:
    controller, workers, recorder = controlled()
    assert controller.run()["steps"] == 4
    for rank, worker in workers.items():
        assert worker.trained == [(rank, step) for step in (1, 2, 3, 4)]
    assert [(what, step) for what, rank, step in workers[0].log if rank == 0] == [
        ("load", 1),
        ("load", 2),
        ("train", 1),
        ("load", 3),
        ("train", 2),
        ("load", 4),
        ("train", 3),
        ("train", 4),
    ]
    assert [row["step"] for row in recorder.rows] == [1, 2, 3, 4]
    assert len(controller.dispatch_s) == 3


def test_a_wish_ends_the_run_after_its_step() -> None:
    wishes = iter(["", "SIGTERM"])
    controller, workers, _ = controlled(wish=lambda: next(wishes))
    assert controller.run()["steps"] == 2
    assert all(worker.trained[-1][1] == 2 for worker in workers.values())


@pytest.mark.parametrize(
    ("odd", "num_steps", "message"),
    [
        (
            standins.WrongLane,
            0,
            "step 1 needs the rows of lanes 0 to 3, in that order; the owners of lanes sent those of 0, 1,",
        ),
        (standins.OldStep, 1, "step 2 was given rows of other steps: lane 3 of step 1"),
        (standins.SameRows, 0, "step 1: lanes 0 and 3 were both given row 8"),
        (standins.FailsToLoad, 2, "rank 3 failed in load_batch: ValueError: chats.jsonl is gone"),
        (
            standins.Elsewhere,
            0,
            "rank 3 stands elsewhere in the layout than the controller says: gtp_batch 0 there, 1 here; ",
        ),
        (
            standins.OtherLayout,
            0,
            "rank 3 was started with another layout than the controller (data_parallel_size 1 there, 2",
        ),
    ],
)
def test_what_does_not_fit_ends_the_run(odd: type[StandIn], num_steps: int, message: str) -> None:
    controller, workers, recorder = controlled(odd=odd)
    with pytest.raises(RunError) as failed:
        controller.run()
    assert str(failed.value).startswith(message)
    assert {len(worker.trained) for worker in workers.values()} == {num_steps}  # never on what failed to load
    told = num_steps - 1 if odd is standins.FailsToLoad else num_steps  # it is seen first
    assert len(recorder.rows) == told


@pytest.mark.parametrize(("odd", "num_steps"), [(standins.NeverLoads, 0), (standins.NeverLoadsLater, 1)])
def test_owners_that_do_not_come_back_are_named(
    monkeypatch: pytest.MonkeyPatch, odd: type[standins.NeverLoads], num_steps: int
) -> None:
    """No other rank waits for them in a collective, as none trains. Of the step before, the rows are there,
    but whether it was trained on is not known."""
    monkeypatch.setattr("rankloom.driver.controller._LATER_S", 0.5)
    odd.over.clear()
    resolved = standins.config(4, **LAYOUT)
    log: list[tuple[Any, ...]] = []
    workers = {rank: (odd if rank in (1, 2) else StandIn)(resolved, rank, log) for rank in range(4)}
    recorder = Recorder()
    with ThreadPoolExecutor(32) as executor:
        controller = SFTController(resolved, LocalGroup(workers, executor=executor), reporter=recorder)
        since = time.monotonic()
        try:
            with pytest.raises(RunError, match=r"^ranks 1, 2 did not come back from load_batch within 2 s$"):
                controller.run()
            assert time.monotonic() - since < 15
        finally:
            odd.over.set()
    assert len(recorder.rows) == num_steps


def test_envelopes_are_small() -> None:
    """Rows that follow a pattern, as dealt in turn."""
    make: Callable[..., Envelope] = lambda rows: Envelope.of(  # noqa: E731
        rows, lane=0, step=1, num_microbatches=1, num_tokens=0, num_bytes=0, batch=None
    )
    rows = list(range(0, 4 * 65536, 4))
    envelope = make(rows)
    assert envelope.rows == rows
    assert len(envelope._packed_rows) < 2048
    assert make([3, -1, -1]).rows == [3, -1, -1]
    refuse_wrong_lanes(
        [
            make([0, -1]),
        ],
        step=1,
        num_lanes=1,
    )
