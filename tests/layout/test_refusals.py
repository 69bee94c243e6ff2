"""What a person reads when a layout does not come out even."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout, from_fold_whole_cp

TP = "tensor_model_parallel_size"
W = "tensor_parallel_num_weight_shards"
Q = "tensor_parallel_num_sequence_shards"
CP = "context_parallel_size"
PP = "pipeline_model_parallel_size"

REFUSALS = [
    pytest.param(
        {"world_size": 24, TP: 4, W: 10},
        f"{W} 10 is not a multiple of {TP} 4; try 8 or 12",
        id="weight shards over tp",
    ),
    pytest.param(
        {"world_size": 16, TP: 4, W: 10},
        f"{W} 10 is not a multiple of {TP} 4; try 8 or 16",
        id="only values with which the whole layout resolves",
    ),
    pytest.param(
        {"world_size": 16, TP: 4, W: 2},
        f"{W} 2 is not a multiple of {TP} 4; try 4",
        id="fewer weight shards than tp",
    ),
    pytest.param(
        {"world_size": 7, TP: 4, W: 10},
        f"{W} 10 is not a multiple of {TP} 4; try 8 or 12",
        id="no value resolves the whole layout",
    ),
    pytest.param(
        {"world_size": 8, TP: 2, W: 4, Q: 3},
        f"{Q} 3 is not a multiple of the sequence-parallel degree 2 ({TP} 2 with sequence_parallel true);"
        f" try 2 or 4",
        id="sequence shards over sp degree",
    ),
    pytest.param(
        {"world_size": 8, TP: 2, W: 4, Q: 1},
        f"{Q} 1 is not a multiple of the sequence-parallel degree 2 ({TP} 2 with sequence_parallel true);"
        f" try 2",
        id="fewer sequence shards than sp degree",
    ),
    pytest.param(
        {"world_size": 8, TP: 2, W: 4, Q: 2, "sequence_parallel": False},
        f"{Q} 2 with {TP} 2 needs sequence_parallel true, and it is false;"
        f" set sequence_parallel true ({Q} then counts the TP ranks too), or {Q} 1",
        id="sequence shards need sequence parallelism",
    ),
    pytest.param(
        {"world_size": 8, W: 4, Q: 3},
        f"{W} 4 / {TP} 1 = 4 is not a multiple of {Q} 3 / sequence-parallel degree 1 = 3; try {Q} 2 or 4",
        id="gtp_remat over sequence shards",
    ),
    pytest.param(
        {"world_size": 24, W: 16},
        f"world_size 24 is not a multiple of 16 = {W} 16 x {CP} 1 x {PP} 1;"
        f" try world_size 16 or 32, or {W} 12 or 24",
        id="world over weight shards",
    ),
    pytest.param(
        {"world_size": 8, CP: 3, W: 2},
        f"world_size 8 is not a multiple of 6 = {W} 2 x {CP} 3 x {PP} 1;"
        f" try world_size 6 or 12, or {CP} 2 or 4",
        id="world over context parallelism",
    ),
    pytest.param(
        {"world_size": 8, PP: 3},
        f"world_size 8 is not a multiple of 3 = {TP} 1 x {CP} 1 x {PP} 3;"
        f" try world_size 6 or 9, or {PP} 2 or 4",
        id="world over pipeline stages",
    ),
    pytest.param(
        {"world_size": 8, "rank_order": "tp-gtp-cp-pp-dp"},
        "rank_order 'tp-gtp-cp-pp-dp' is not known; use tp-gtp-cp-dp-pp (nearest) or tp-cp-gtp-dp-pp",
        id="a misspelt order",
    ),
    pytest.param(
        {"world_size": 8, "rank_order": "xyz"},
        "rank_order 'xyz' is not known; use tp-gtp-cp-dp-pp or tp-cp-gtp-dp-pp",
        id="another order",
    ),
    pytest.param({"world_size": 8, "rank_offset": -1}, "rank_offset must be at least 0, not -1", id="offset"),
]


@pytest.mark.parametrize(
    ("name", "value"), [("world_size", 0), (TP, -1), (W, 2.5), (Q, 0), (CP, "2"), (PP, True)]
)
def test_sizes_are_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(UserError) as refused:
        GTPParallelLayout.resolve(**({"world_size": 8} | {name: value}))  # type: ignore[arg-type]
    assert str(refused.value) == f"{name} must be a whole number of at least 1, not {value!r}"


@pytest.mark.parametrize(("settings", "message"), REFUSALS)
def test_refusal(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as refused:
        GTPParallelLayout.resolve(**settings)  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_the_values_of_the_remedy_do_work() -> None:
    settings = {"world_size": 24, TP: 1, W: 16}
    for change in ({"world_size": 16}, {"world_size": 32}, {W: 12}, {W: 24}):
        GTPParallelLayout.resolve(**(settings | change))


@pytest.mark.parametrize(
    ("sources", "ending"),
    [
        ({f"parallel.{W}": "file", f"parallel.{TP}": "file"}, "; try 8 or 12 (parallel section of run.yaml)"),
        (
            {f"parallel.{W}": "file", f"parallel.{TP}": "derived"},
            "; try 8 or 12 (parallel section of run.yaml)",
        ),
        ({f"parallel.{W}": "cli", f"parallel.{TP}": "cli"}, "; try 8 or 12 (given on the command line)"),
        (
            {f"parallel.{W}": "cli", f"parallel.{TP}": "default"},
            f"; try 8 or 12 ({W}: given on the command line; {TP}: a default given in code)",
        ),
    ],
)
def test_a_refusal_ends_with_where_the_values_came_from(sources: dict[str, str], ending: str) -> None:
    with pytest.raises(UserError, match=re.escape(ending) + "$"):
        GTPParallelLayout.resolve(
            world_size=24,
            tensor_model_parallel_size=4,
            tensor_parallel_num_weight_shards=10,
            sources=sources,
            origin="run.yaml",
        )


def test_a_layout_cannot_be_made_around_the_arithmetic() -> None:
    layout = GTPParallelLayout.resolve(world_size=8, tensor_parallel_num_weight_shards=4)
    with pytest.raises(UserError, match="world_size 10 is not a multiple of 4"):
        replace(layout, world_size=10)


def test_ranks_and_lanes_that_do_not_exist() -> None:
    layout = GTPParallelLayout.resolve(world_size=4, rank_offset=4)
    for rank in (3, 8):
        with pytest.raises(UserError, match=f"rank {rank} is not in this layout, which holds ranks 4 to 7"):
            layout.coords(rank)
        with pytest.raises(UserError, match=f"rank {rank} is not in this layout"):
            layout.weights.group_of(rank, "tp")
    with pytest.raises(UserError, match="there is no lane 4; this layout has lanes 0 to 3"):
        layout.owner(4)


def test_axes_that_a_view_does_not_have() -> None:
    layout = GTPParallelLayout.resolve(world_size=2)
    with pytest.raises(ValueError, match="the weights view has no axis 'context'; the tokens view has it"):
        layout.weights.groups("context")
    with pytest.raises(ValueError, match=r"the tokens view has no axis 'data' \(its axes: tp, "):
        layout.tokens.groups(("tp", "data"))


def test_sequence_parallelism_has_no_effect_without_tensor_parallelism() -> None:
    on = GTPParallelLayout.resolve(world_size=2, sequence_parallel=True)
    assert on == GTPParallelLayout.resolve(world_size=2)
    assert on.sequence_parallel is False
    assert GTPParallelLayout.resolve(world_size=2, tensor_model_parallel_size=2).sequence_parallel is True


def test_spellings_refuse_sizes_below_one() -> None:
    with pytest.raises(UserError, match="gtp_remat_size must be a whole number of at least 1, not 0"):
        from_fold_whole_cp(context_parallel_size=2, gtp_remat_size=0)
