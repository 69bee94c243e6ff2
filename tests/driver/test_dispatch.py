"""Arguments of each rank, and results in lane order, with workers that are objects of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings

from rankloom.driver import WITHIN_LANE, BoundCalls, LocalGroup, NamedAxes, call
from rankloom.errors import RunError, UserError
from rankloom.layout import DRIVER_AXES, GTPParallelLayout
from tests.driver.layouts import L24, LAYOUTS, TRAP
from tests.layout.brute import CASES, Case

PP, DP, CP, TP = DRIVER_AXES


@dataclass
class Worker:
    """Remembers what it was called with; ``gate`` is waited for, if there is one, before an answer."""

    rank: int
    got: list[tuple[Any, ...]] = field(default_factory=list)
    gate: threading.Event | None = None

    def _answer(self, *got: Any) -> Any:
        if self.gate is not None:
            assert self.gate.wait(timeout=20)
        self.got.append(got)
        return (self.rank, got[0] if got else None)

    @call(shard=DP, replicate=WITHIN_LANE)
    def train(self, batch: Any, step: int = 0, *, lr: Any = None) -> Any:
        return self._answer(batch, step, lr)

    @call(shard=DP, replicate=WITHIN_LANE, collect="all")
    def views(self, piece: Any) -> Any:
        return self._answer(piece)

    @call(replicate=DRIVER_AXES)
    def save(self, folder: Any) -> Any:
        return self._answer(folder)

    @call(replicate=DRIVER_AXES, collect="none")
    def stop(self) -> Any:
        return self._answer()

    @call(shard=DP, leader_only=WITHIN_LANE, collective=False, takes_pieces=False)
    def load_batch(self, step: int) -> Any:
        return self._answer(step)

    @call(shard=(DP, TP), replicate=(PP, CP))
    def two_axes(self, piece: Any) -> Any:
        return self._answer(piece)

    @call(replicate=DRIVER_AXES)
    def fails(self, on: int, error: Exception) -> None:
        if self.rank >= on:
            raise error


def workers_of(layout: GTPParallelLayout) -> dict[int, Worker]:
    return {rank: Worker(rank) for rank in layout.ranks}


CALLS = BoundCalls(NamedAxes.of(L24), Worker)


def test_each_lane_gets_its_piece_and_results_come_in_lane_order() -> None:
    workers = workers_of(L24)
    results = CALLS.run(LocalGroup(workers), "train", 7, pieces="abcdef", lr=0.5)
    assert results == [(0, "a"), (4, "b"), (8, "c"), (12, "d"), (16, "e"), (20, "f")]
    assert all(worker.got == [("abcdef"[rank // 4], 7, 0.5)] for rank, worker in workers.items())


def test_lanes_are_not_a_plain_reshape() -> None:
    workers = workers_of(TRAP)
    results = BoundCalls(NamedAxes.of(TRAP), Worker).run(LocalGroup(workers), "train", pieces=range(4))
    assert results == [(0, 0), (1, 1), (4, 2), (5, 3)]
    assert [workers[rank].got[0][0] for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_results_of_all_ranks_and_of_none() -> None:
    group = LocalGroup(workers_of(L24))
    assert CALLS.run(group, "views", pieces="abcdef") == [(rank, "abcdef"[rank // 4]) for rank in range(24)]
    assert CALLS.run(group, "stop") == []
    assert CALLS.run(group, "save", "there") == [(0, "there")]


def test_lane_owners_alone() -> None:
    workers = workers_of(L24)
    assert CALLS.run(LocalGroup(workers), "load_batch", 3) == [(4 * lane, 3) for lane in range(6)]
    assert [rank for rank, worker in workers.items() if worker.got] == [0, 4, 8, 12, 16, 20]


def test_over_two_axes_the_last_changes_fastest() -> None:
    workers = workers_of(L24)
    results = CALLS.run(LocalGroup(workers), "two_axes", pieces=range(24))
    assert results == [(rank, rank) for rank in range(24)]
    other = BoundCalls(NamedAxes.of(LAYOUTS["every axis"]), Worker)
    workers = workers_of(LAYOUTS["every axis"])
    other.run(LocalGroup(workers), "two_axes", pieces=range(8))
    for rank, worker in workers.items():
        at = LAYOUTS["every axis"].coords(rank)
        assert worker.got == [(at.lane * 2 + at.tp,)]


def test_results_are_joined_in_lane_order_even_when_lane_0_is_slowest() -> None:
    workers = workers_of(L24)
    finished: list[int] = []
    gate = threading.Event()
    for rank in range(4):  # lane 0 answers only after all others have
        workers[rank].gate = gate
    with ThreadPoolExecutor(24) as executor:
        pending = CALLS.start(LocalGroup(workers, executor=executor), "train", pieces="abcdef")
        for rank, task in reversed(pending.handles.items()):
            if rank >= 4:
                task.outcome.result(timeout=20)
                finished.append(rank)
        assert not any(pending.handles[rank].outcome.done() for rank in range(4))
        gate.set()
        results = pending.result()
    assert finished == list(range(23, 3, -1))
    assert results == [(0, "a"), (4, "b"), (8, "c"), (12, "d"), (16, "e"), (20, "f")]


def test_a_second_call_can_be_under_way() -> None:
    workers = workers_of(L24)
    gate = threading.Event()
    with ThreadPoolExecutor(48) as executor:
        group = LocalGroup(workers, executor=executor)
        for worker in workers.values():
            worker.gate = gate
        first = CALLS.start(group, "train", pieces="abcdef")
        second = CALLS.start(group, "load_batch", 1)
        gate.set()
        assert [piece for _, piece in second.result()] == [1] * 6
        assert [piece for _, piece in first.result()] == list("abcdef")


class Counting(LocalGroup):
    """Counts what is shared and sent."""

    def __init__(self, workers: Mapping[int, object]) -> None:
        super().__init__(workers)
        self.shared: list[Any] = []
        self.sent: list[tuple[int, tuple[Any, ...], Mapping[str, Any]]] = []
        self.fetched: list[int] = []

    def share(self, value: Any) -> Any:
        self.shared.append(value)
        return value

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.sent.append((rank, args, kwargs))
        return super().submit(rank, method, args, kwargs)

    def gather(self, handles: Mapping[int, Any], wanted: Sequence[int], **options: Any) -> list[Any]:
        self.fetched += wanted
        return super().gather(handles, wanted, **options)


def test_arguments_are_shared_and_not_copied() -> None:
    group = Counting(workers_of(L24))
    pieces, step, lr = [[lane] for lane in range(6)], object(), object()
    CALLS.run(group, "train", step, pieces=pieces, lr=lr)
    assert group.shared == [step, lr, *pieces]  # each once, whatever the number of ranks
    assert len({id(args) for _, args, _ in group.sent}) == 6
    assert len({id(kwargs) for _, _, kwargs in group.sent}) == 1
    assert all(args[0] is pieces[rank // 4] and args[1] is step for rank, args, _ in group.sent)
    assert group.fetched == [0, 4, 8, 12, 16, 20]


@settings(max_examples=40, deadline=None)
@given(case=CASES)
def test_every_rank_trains_on_its_lane_in_any_layout(case: Case) -> None:
    layout = case.layout()
    workers = workers_of(layout)
    lanes = layout.batch_parallel_size
    results = BoundCalls(NamedAxes.of(layout), Worker).run(LocalGroup(workers), "train", pieces=range(lanes))
    assert [piece for _, piece in results] == list(range(lanes))
    for rank, at in case.coordinates().items():
        assert workers[rank].got == [(case.indices(at)["lane"], 0, None)]


def refused(kind: type[Exception], group: Counting, *given: Any, **arguments: Any) -> str:
    """The message; nothing was sent."""
    with pytest.raises(kind) as refusal:
        CALLS.start(group, *given, **arguments)
    assert group.sent == group.shared == []
    return str(refusal.value)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (5, "5 pieces for data_parallel 6: 4 of 24 ranks would stay uncalled: 20-23; give 6"),
        (1, "1 piece for data_parallel 6: 20 of 24 ranks would stay uncalled: 4-23; give 6"),
        (0, "0 pieces for data_parallel 6: 24 of 24 ranks would stay uncalled: 0-23; give 6"),
        (7, "7 pieces for data_parallel 6: piece 6 would reach no rank; give 6"),
        (24, "24 pieces for data_parallel 6: pieces 6 to 23 would reach no rank; give 6"),
        (None, "0 pieces for data_parallel 6: 24 of 24 ranks would stay uncalled: 0-23; give 6"),
    ],
)
def test_another_number_of_pieces(number: int | None, message: str) -> None:
    pieces = None if number is None else list(range(number))
    group = Counting(workers_of(L24))
    assert refused(RunError, group, "train", pieces=pieces) == f"call train: {message}"


def test_another_number_of_pieces_over_two_axes() -> None:
    assert refused(RunError, Counting(workers_of(L24)), "two_axes", pieces=range(6)) == (
        "call two_axes: 6 pieces for data_parallel 6 x tensor_parallel 4 = 24:"
        " 18 of 24 ranks would stay uncalled: 6-23; give 24"
    )


@pytest.mark.parametrize("method", ["save", "load_batch"])
def test_pieces_for_a_call_that_takes_none(method: str) -> None:
    assert refused(RunError, Counting(workers_of(L24)), method, pieces=["a", "b"]) == (
        f"call {method} takes no pieces, and 2 are given; pass what all ranks get as an argument"
    )


def test_arguments_that_the_method_does_not_take() -> None:
    group = Counting(workers_of(L24))
    assert refused(RunError, group, "save") == (
        "call save: missing a required argument: 'folder'; it is save(self, folder: 'Any') -> 'Any'"
    )
    assert refused(RunError, group, "train", 1, 2, pieces="abcdef").startswith(
        "call train: too many positional arguments; it is train(self, batch"
    )
    assert refused(RunError, group, "save", "there", rate=1).startswith(
        "call save: got an unexpected keyword argument 'rate'"
    )


def test_a_method_that_is_not_declared() -> None:
    assert refused(UserError, Counting(workers_of(L24)), "_answer").startswith("_answer is no call of Worker")


def test_saving_on_a_part_of_the_ranks() -> None:
    workers = {rank: worker for rank, worker in workers_of(L24).items() if rank not in (3, 8, 9, 10)}
    assert refused(RunError, Counting(workers), "save", "there") == (
        "call save is for 24 ranks, and 4 of them have no worker in this group: 3, 8-10"
    )


@pytest.mark.parametrize("threads", [0, 24])
def test_a_rank_that_fails(threads: int) -> None:
    executor = ThreadPoolExecutor(threads) if threads else None
    group = LocalGroup(workers_of(L24), executor=executor)
    with pytest.raises(RunError, match=r"^rank 23 failed in fails: ValueError: bad number$") as failure:
        CALLS.run(group, "fails", 23, ValueError("bad number"))
    assert isinstance(failure.value.__cause__, ValueError)
    with pytest.raises(UserError, match=r"^the data is bad$"):
        CALLS.run(group, "fails", 5, UserError("the data is bad"))
    if executor is not None:
        executor.shutdown()
