"""The ranks over the axes of a driver."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from rankloom.driver import NamedAxes
from rankloom.layout import GTPParallelLayout
from tests.driver.layouts import L24, LAYOUTS, TRAP
from tests.layout.brute import CASES, Case

AXES = NamedAxes.of(L24)
FOUR = ["pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel"]


def test_sizes_and_names() -> None:
    assert AXES.shape == dict(zip(FOUR, (1, 6, 1, 4), strict=True))
    assert AXES.names == FOUR
    assert (AXES.ndim, AXES.size) == (4, 24)
    assert AXES.get_axis_index("tensor_parallel") == 3
    assert AXES.get_axis_size("data_parallel") == 6
    assert AXES.layout.tolist() == L24.driver_axes().tolist()


def test_the_array_that_is_given_out_is_a_copy() -> None:
    AXES.layout[:] = 0
    assert AXES.get_ranks(pipeline_parallel=0, data_parallel=5, context_parallel=0, tensor_parallel=3) == 23


def test_a_slice_has_the_axes_that_are_left() -> None:
    lane = AXES.get_ranks(data_parallel=2)
    assert isinstance(lane, NamedAxes)
    assert lane.shape == {"pipeline_parallel": 1, "context_parallel": 1, "tensor_parallel": 4}
    assert lane == NamedAxes([[[8, 9, 10, 11]]], ["pipeline_parallel", "context_parallel", "tensor_parallel"])
    assert lane.get_ranks(pipeline_parallel=0, context_parallel=0, tensor_parallel=1) == 9
    assert lane.get_worker_coords(11)["tensor_parallel"] == 3
    assert AXES.get_ranks() == AXES


def test_ranks_by_coordinates_are_ascending() -> None:
    assert AXES.get_ranks_by_coord(tensor_parallel=1) == [1, 5, 9, 13, 17, 21]
    assert AXES.get_ranks_by_coord() == list(range(24))
    assert NamedAxes.of(TRAP).get_ranks_by_coord(data_parallel=1) == [1, 3]
    assert NamedAxes.of(TRAP).get_worker_coords(3) == dict(zip(FOUR, (0, 1, 1, 0), strict=True))


def test_equality_is_of_ranks_and_names() -> None:
    assert NamedAxes.of(L24) == AXES
    assert hash(NamedAxes.of(L24)) == hash(AXES)
    assert NamedAxes.of(TRAP) != AXES
    assert NamedAxes([0, 1], ["dp"]) != NamedAxes([0, 1], ["tp"])
    assert NamedAxes([0, 1], ["dp"]) != NamedAxes([1, 0], ["dp"])
    assert NamedAxes([0], ["dp"]) != [0]


@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_data_parallel_is_the_lane_and_context_parallel_the_context(case: Case) -> None:
    axes = NamedAxes.of(case.layout())
    for rank, at in case.coordinates().items():
        indices = case.indices(at)
        assert axes.get_worker_coords(rank) == {
            "pipeline_parallel": at["pp"],
            "data_parallel": indices["lane"],
            "context_parallel": indices["context"],
            "tensor_parallel": at["tp"],
        }
        assert axes.get_ranks(**axes.get_worker_coords(rank)) == rank


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_ranks_as_the_layout_has(name: str) -> None:
    axes = NamedAxes.of(LAYOUTS[name])
    assert axes.parallel_layout is LAYOUTS[name]
    assert axes.get_ranks_by_coord() == list(LAYOUTS[name].ranks)
    for rank in LAYOUTS[name].ranks:
        assert axes.get_worker_coords(rank)["data_parallel"] == LAYOUTS[name].lane(rank)


def test_a_slice_is_not_a_whole_layout() -> None:
    lane = AXES.get_ranks(data_parallel=2, pipeline_parallel=0, context_parallel=0)
    assert isinstance(lane, NamedAxes)
    with pytest.raises(
        ValueError, match=r"^NamedAxes\(tensor_parallel 4; ranks 8-11\) are not the axes of a"
    ):
        _ = lane.parallel_layout


NO_GTP = (
    r"^there is no axis 'gtp'; the axes are"
    r" pipeline_parallel 1, data_parallel 6, context_parallel 1, tensor_parallel 4$"
)


def test_an_axis_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=NO_GTP):
        AXES.get_ranks(gtp=0)
    with pytest.raises(ValueError, match=NO_GTP):
        AXES.get_ranks_by_coord(gtp=0)
    with pytest.raises(ValueError, match=NO_GTP):
        AXES.get_axis_index("gtp")
    with pytest.raises(ValueError, match=NO_GTP):
        AXES.get_axis_size("gtp")


@pytest.mark.parametrize("index", [6, -1])
def test_an_index_that_does_not_exist(index: int) -> None:
    message = f"^data_parallel has no index {index}: its size is 6, so they are 0 to 5$"
    with pytest.raises(IndexError, match=message):
        AXES.get_ranks(data_parallel=index)
    with pytest.raises(IndexError, match=message):
        AXES.get_ranks_by_coord(data_parallel=index)


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"^rank 24 is not there; the ranks are 0-23$"):
        AXES.get_worker_coords(24)
    lane = AXES.get_ranks(data_parallel=2)
    assert isinstance(lane, NamedAxes)
    with pytest.raises(ValueError, match=r"^rank 0 is not there; the ranks are 8-11$"):
        lane.get_worker_coords(0)


@pytest.mark.parametrize(
    ("ranks", "names", "message"),
    [
        ([[0, 1], [2, 3]], ["dp"], "1 names (dp) for 2 dimensions"),
        ([[0, 1], [2, 3]], ["dp", "dp"], "an axis comes twice: dp, dp"),
        ([0, 1, 1, 2, 2], ["dp"], "each rank can be there once; more than once: 1, 2"),
        ([0.5, 1], ["dp"], "ranks must be whole numbers, not float64"),
    ],
)
def test_arrays_that_are_refused(ranks: list[object], names: list[str], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the message is compared whole)
        NamedAxes(np.array(ranks), names)
    assert str(refusal.value) == message


def test_axes_and_calls_load_neither_torch_nor_ray() -> None:
    names = ("BoundCalls", "CallSpec", "Group", "LocalGroup", "NamedAxes", "PendingCall", "call")
    code = (
        f"import sys, rankloom.driver as driver\nfor name in {names}: getattr(driver, name)\n"
        "print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_name_that_the_package_does_not_have() -> None:
    import rankloom.driver

    with pytest.raises(AttributeError, match=r"module 'rankloom.driver' has no attribute 'nothing'"):
        _ = rankloom.driver.nothing


def test_examples() -> None:
    import doctest

    from rankloom.driver import axes, calls

    for module in (axes, calls):
        outcome = doctest.testmod(module, extraglobs={"GTPParallelLayout": GTPParallelLayout})
        assert outcome.attempted > 0
        assert outcome.failed == 0
