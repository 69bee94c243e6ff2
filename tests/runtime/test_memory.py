"""What a rank keeps between steps is what the plan says, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelPlan, ModelSpec
from rankloom.plan.memory import memory_parts
from tests.runtime.models import FAMILIES, Recipe, random_rows
from tests.runtime.sharded import build, step

LAYOUTS: list[dict[str, Any]] = [
    {"tensor_parallel_num_weight_shards": 4},
    {"tensor_parallel_num_weight_shards": 2, "context_parallel_size": 2},
    {"tensor_model_parallel_size": 2, "tensor_parallel_num_weight_shards": 2},
    {},
]


def kept(rank: int, world_size: int, settings: dict[str, Any], recipe: Recipe) -> dict[str, int]:
    """Bytes of each kind of tensor after a step, counted on the tensors themselves."""
    model, optimizer = build(GTPParallelLayout.resolve(world_size=world_size, **settings), recipe, rank)
    step(model, optimizer, recipe.steps[0], recipe)
    units = [*model.units, model.small]

    def num_bytes(tensors: list[torch.Tensor]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    moments = [state[name] for state in optimizer.adamw.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return {
        "parameters": num_bytes([unit.stored for unit in units]),
        "gradients": num_bytes([unit.gradients for unit in units]),
        "summed gradients": num_bytes(
            [p.gradient for p in optimizer.pieces if p.gradient is not p.unit.gradients]
        ),
        "master weights": num_bytes(
            [
                piece.master
                for piece in optimizer.pieces
                if piece.master.untyped_storage().data_ptr() != piece.unit.stored.untyped_storage().data_ptr()
            ]
        ),
        "moments": num_bytes(moments),
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "settings", LAYOUTS, ids=lambda settings: "-".join(map(str, settings.values())) or "copies"
)
def test_a_rank_keeps_what_the_plan_says(
    ranks: Callable[..., list[Any]], settings: dict[str, Any], dtype: str
) -> None:
    rows = tuple(random_rows(4, length=16, seed=3))
    recipe = Recipe(family="qwen2", steps=(rows,), length=16, dtype=dtype)
    found = ranks(4, kept, settings, recipe)
    plan = ModelPlan.build(
        ModelSpec.from_config(FAMILIES["qwen2"]), GTPParallelLayout.resolve(world_size=4, **settings)
    )
    planned = {p.what: p.num_bytes for p in memory_parts(plan, element_size=4 if dtype == "float32" else 2)}
    for what in found[0]:
        assert max(rank[what] for rank in found) == planned.get(what, 0), what
