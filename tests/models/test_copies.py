"""Copies of a parameter are the same bits after a step; the check that says so finds those that are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankloom.errors import RunError
from rankloom.layout import GTPParallelLayout
from rankloom.models import verify_copies
from rankloom.weights import SmallUnit
from tests.pool import RanksFailed
from tests.runtime.models import Recipe, random_rows
from tests.runtime.sharded import build, step

TP, W, Q, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
)


def recipe(family: str) -> Recipe:
    return Recipe(family=family, steps=(tuple(random_rows(8, length=16, seed=3)),), length=16)


def after_a_step(rank: int, world_size: int, settings: dict[str, Any], r: Recipe) -> Any:
    """(tp, weight shard) of this rank, its stored shards, its small parameters."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, optimizer = build(layout, r, rank)
    step(model, optimizer, r.steps[0], r)
    verify_copies(model)
    at = layout.coords(rank)
    shards = {p.name: unit.shard(p.name).clone() for unit in model.units for p in unit.plan.placements}
    small = {
        p.name: (p.tp_dim is not None, model.small.shard(p.name).clone()) for p in model.small.plan.placements
    }
    return (at.tp, at.weight_shard), shards, small


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (8, {W: 4}),
        (8, {TP: 2, W: 4}),
        (4, {TP: 2, W: 4, "sequence_parallel": False}),
        pytest.param(8, {TP: 2, W: 4, Q: 4, CP: 2}, marks=pytest.mark.long),
        pytest.param(8, {W: 2, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}, marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["qwen3", "llama_biases_tied"])
def test_all_copies_are_bitwise_equal_after_a_step(
    ranks: Any, family: str, world: int, settings: dict[str, Any]
) -> None:
    results = ranks(world, after_a_step, settings, recipe(family))
    first: dict[Any, Tensor] = {}
    for (tp, shard), shards, small in results:
        keyed = {(name, tp, shard): t for name, t in shards.items()}
        keyed |= {(name, tp if cut else None): t for name, (cut, t) in small.items()}
        for key, tensor in keyed.items():
            assert torch.equal(first.setdefault(key, tensor), tensor), key


def without_the_sum_over_tp(rank: int, world_size: int, settings: dict[str, Any], r: Recipe) -> str:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, optimizer = build(layout, r, rank)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SmallUnit, "sum_partial", lambda unit: None)
        step(model, optimizer, r.steps[0], r)
    try:
        verify_copies(model)
    except RunError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("family", "sequence_parallel", "name"),
    [
        ("llama", True, "model.layers.0.input_layernorm.weight"),
        ("llama_biases_tied", True, "model.layers.0.self_attn.o_proj.bias"),
        ("qwen3", False, "model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_sum_that_is_switched_off_is_found_with_parameter_and_ranks(
    ranks: Any, family: str, sequence_parallel: bool, name: str
) -> None:
    settings = {TP: 2, W: 4, "sequence_parallel": sequence_parallel}
    errors = ranks(4, without_the_sum_over_tp, settings, recipe(family))
    for rank, error in enumerate(errors):
        a = rank // 2 * 2
        assert error.startswith(
            f"{name} differs between rank {a} and rank {a + 1}, which hold copies of it"
        ), error
        assert f"(tp group [{a}, {a + 1}])" in error


def without_partial_sums_nothing_is_missing(rank: int, world_size: int, r: Recipe) -> str:
    return without_the_sum_over_tp(rank, world_size, {TP: 2, "sequence_parallel": False}, r)


def test_without_sequence_parallelism_norms_need_no_sum(ranks: Any) -> None:
    assert ranks(2, without_partial_sums_nothing_is_missing, recipe("llama")) == ["", ""]


def one_bit_off(rank: int, world_size: int, what: str, r: Recipe) -> None:
    layout = GTPParallelLayout.resolve(world_size=world_size, **{W: 2})
    model, _ = build(layout, r, rank)
    if rank == 3:
        shard = model.units[1].shard("model.layers.0.mlp.up_proj.weight") if what == "shard" else None
        target = shard if shard is not None else model.small.shard("model.norm.weight")
        bits = target.view(torch.int32)
        bits.view(-1)[-1] ^= 1
    verify_copies(model)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shard", "model.layers.0.mlp.up_proj.weight differs between rank 1 and rank 3"),
        ("small", "model.norm.weight differs between rank 0 and rank 3"),
    ],
)
def test_one_bit_of_one_copy_is_found(ranks: Any, what: str, message: str) -> None:
    with pytest.raises(RanksFailed, match=f"raised RunError: {message}, which hold copies of it"):
        ranks(4, one_bit_off, what, recipe("llama"), timeout_s=20)
