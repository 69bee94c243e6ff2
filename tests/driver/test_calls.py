"""What is declared of a worker's method, and declarations that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.driver import WITHIN_LANE, BoundCalls, CallSpec, NamedAxes, call
from rankloom.driver.calls import spec_of
from rankloom.driver.dispatch import CallPlan, plan_call
from rankloom.errors import UserError
from rankloom.layout import DRIVER_AXES, Call, Driver, reach
from tests.driver.layouts import L24, LAYOUTS, layout_of

PP, DP, CP, TP = DRIVER_AXES
AXES = NamedAxes.of(L24)


class Worker:
    @call(shard=DP, replicate=WITHIN_LANE)
    def train(self, batch: object, *, lr: float) -> object: ...

    @call(replicate=DRIVER_AXES)
    def save(self, folder: str) -> str: ...

    @call(shard=DP, leader_only=WITHIN_LANE, collective=False, takes_pieces=False)
    def load_batch(self, step: int) -> object: ...

    @call(shard=(CP, "dp"), replicate=(PP, TP), collect="all")
    def slices(self, piece: object) -> object: ...

    @call(leader_only=DRIVER_AXES, collective=False)
    def tokenizer(self) -> object: ...

    def not_declared(self) -> None: ...


def refused(**axes: Any) -> str:
    with pytest.raises(UserError) as refusal:

        @call(**axes)
        def save(worker: object) -> None: ...

    return str(refusal.value)


def not_planned(spec: CallSpec, axes: NamedAxes = AXES) -> str:
    with pytest.raises(UserError) as refusal:
        plan_call("f", spec, axes=axes)
    return str(refusal.value)


def test_a_declaration_lies_on_the_method() -> None:
    assert spec_of(Worker.train) == CallSpec(shard=(DP,), replicate=(PP, CP, TP))
    assert spec_of(Worker.not_declared) is None
    assert Worker().train(None, lr=1.0) is None  # the method stays as it is


def test_axes_stand_in_one_order_and_may_be_short() -> None:
    assert spec_of(Worker.slices) == CallSpec(shard=(DP, CP), replicate=(PP, TP), collect="all")


def test_all_declared_methods_are_planned() -> None:
    calls = BoundCalls(AXES, Worker)
    assert calls.names == ("load_batch", "save", "slices", "tokenizer", "train")
    assert calls.plan("train").said == "train reaches all 24 ranks with 6 pieces over data_parallel"
    assert calls.plan("save").said == "save reaches all 24 ranks with 1 piece for everybody"
    assert calls.plan("slices").said == (
        "slices reaches all 24 ranks with 6 pieces over data_parallel,context_parallel"
    )
    assert calls.plan("load_batch").ranks == (0, 4, 8, 12, 16, 20)
    assert calls.plan("tokenizer").ranks == (0,)


def test_a_method_that_is_not_declared() -> None:
    with pytest.raises(UserError) as refusal:
        BoundCalls(AXES, Worker).plan("not_declared")
    assert str(refusal.value) == (
        "not_declared is no call of Worker;"
        " declared with @call are: load_batch, save, slices, tokenizer, train"
    )


def test_an_override_needs_its_own_declaration() -> None:
    class Other(Worker):
        def save(self, folder: str) -> str: ...

    assert "save" not in BoundCalls(AXES, Other).names


def test_an_axis_that_is_not_named() -> None:
    assert not_planned(CallSpec(shard=(DP,), replicate=(PP, CP))) == (
        "f reaches 6 of 24 ranks with 6 pieces over data_parallel;"
        " 18 never called: 1-3, 5-7, 9-11, 13-15, 17-19, 21-23;"
        " it does not say whether to split, copy or call index 0 only of tensor_parallel 4;"
        " try f: shard=data_parallel replicate=pipeline_parallel,context_parallel,tensor_parallel"
    )
    assert not_planned(CallSpec()) == (
        "f reaches 1 of 24 ranks with 1 piece for everybody; 23 never called: 1-23;"
        " it does not say whether to split, copy or call index 0 only of data_parallel 6, tensor_parallel 4;"
        " try f: replicate=pipeline_parallel,data_parallel,context_parallel,tensor_parallel"
    )


def test_an_axis_of_size_1_need_not_be_named() -> None:
    assert plan_call("f", CallSpec(shard=(DP,), replicate=(TP,)), axes=AXES).ranks == tuple(range(24))
    assert plan_call("f", CallSpec(), axes=NamedAxes.of(layout_of(1))).ranks == (0,)


def test_what_a_class_gets_wrong_is_found_before_there_is_a_worker() -> None:
    class Careless:
        @call(shard=DP, replicate=TP)
        def train(self, batch: object) -> None: ...

    assert BoundCalls(AXES, Careless).names == ("train",)
    with pytest.raises(UserError) as refusal:
        BoundCalls(NamedAxes.of(LAYOUTS["every axis"]), Careless)
    assert str(refusal.value).startswith(
        "train reaches 8 of 64 ranks with 4 pieces over data_parallel; 56 never"
    )
    assert "index 0 only of pipeline_parallel 2, context_parallel 4;" in str(refusal.value)
    assert str(refusal.value).endswith("(declared in Careless)")


def test_pieces_over_other_axes_than_the_lanes_are_meant() -> None:
    axes = NamedAxes.of(LAYOUTS["every axis"])
    plan = plan_call("f", CallSpec(shard=(DP, CP), replicate=(PP, TP)), axes=axes)
    assert plan.said == "f reaches all 64 ranks with 16 pieces over data_parallel,context_parallel"


def test_an_axis_in_two_lists() -> None:
    assert refused(shard=DP, replicate="dp") == (
        "call save: data_parallel stands in shard and in replicate;"
        " an axis is split, copied or called at index 0 only, one of the three"
    )
    assert refused(shard=(DP, "dp")) == "call save: data_parallel stands twice in shard; name it once"


def test_an_axis_that_does_not_exist() -> None:
    assert refused(shard="gtp") == (
        "call save: there is no axis 'gtp';"
        " the axes are pipeline_parallel, data_parallel, context_parallel, tensor_parallel"
    )


def test_a_word_that_is_no_way_to_collect() -> None:
    assert refused(replicate=DRIVER_AXES, collect="first") == (
        "call save: collect is shards, all or none, not 'first'"
    )


def test_a_collective_cannot_leave_ranks_out() -> None:
    assert refused(shard=DP, leader_only=WITHIN_LANE) == (
        "call save is a collective, in which all ranks wait for each other, and"
        " leader_only=pipeline_parallel,context_parallel,tensor_parallel calls index 0 alone, which would"
        " wait forever; copy it to all of them (save: shard=data_parallel"
        " replicate=pipeline_parallel,context_parallel,tensor_parallel), or write collective=False if no rank"
        " waits for another"
    )


def test_a_specification_made_by_hand_is_judged_when_it_is_planned() -> None:
    assert not_planned(CallSpec(shard=("gtp",))).startswith("call f: there is no axis 'gtp'")
    assert not_planned(CallSpec(replicate=(DP,), leader_only=(TP,))).startswith("call f is a collective")


def test_only_a_whole_layout_has_calls() -> None:
    with pytest.raises(ValueError, match=r"are not the axes of a whole layout; make them with NamedAxes\.of"):
        BoundCalls(NamedAxes(L24.driver_axes(), DRIVER_AXES), Worker)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("method", ["train", "save", "slices"])
def test_every_rank_is_reached_in_every_layout(method: str, layout: Any) -> None:
    plan = BoundCalls(NamedAxes.of(layout), Worker).plan(method)
    assert plan.ranks == tuple(layout.ranks)
    contexts = layout.runtime_context_parallel_size
    at = [layout.coords(rank) for rank in plan.ranks]
    expected = {
        "train": [c.lane for c in at],
        "save": [0 for _ in at],
        "slices": [c.lane * contexts + c.context for c in at],
    }
    assert list(plan.pieces) == expected[method]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_results_are_those_of_the_lane_owners(layout: Any) -> None:
    calls = BoundCalls(NamedAxes.of(layout), Worker)
    owners = tuple(layout.owner(lane) for lane in range(layout.batch_parallel_size))
    assert calls.plan("train").wanted == owners
    assert set(calls.plan("load_batch").ranks) == set(owners)
    assert calls.plan("load_batch").wanted == owners
    assert calls.plan("save").wanted == (layout.rank_offset,)


def test_a_plan_is_what_check_says() -> None:
    plan: CallPlan = BoundCalls(AXES, Worker).plan("train")
    told = reach(Call("train", (DP,), WITHIN_LANE), Driver.of_layout(L24), L24)
    assert (plan.ranks, plan.num_pieces, plan.said) == (told.reached, told.num_pieces, told.describe())
