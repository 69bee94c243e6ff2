"""The body of a parity test on one rank: the same steps with sharded weights and tokens."""

from __future__ import annotations

from typing import Any

import torch

from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.models import ShardedModel, fill, logical_parameters
from rankloom.optim import ShardedAdamW
from rankloom.plan import ModelPlan, ModelSpec
from tests.runtime.models import FAMILIES, PretrainedLike, Recipe, Trajectory, hf_config, tensor_rows


def build(layout: GTPParallelLayout, recipe: Recipe, rank: int) -> tuple[ShardedModel, ShardedAdamW]:
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=60)
    comm.verify()
    plan = ModelPlan.build(ModelSpec.from_config(FAMILIES[recipe.family]), layout)
    model = ShardedModel(
        plan,
        hf_config(recipe.family),
        comm,
        dtype=getattr(torch, recipe.dtype),
        gradient_checkpointing=recipe.gradient_checkpointing,
    )
    fill(model, PretrainedLike())
    optimizer = ShardedAdamW(
        model.units,
        model.small,
        comm,
        decays=lambda p: p.sharded,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=recipe.weight_decay,
        clip_grad=recipe.clip_grad,
    )
    model.reducer.on_complete = optimizer.launch_reduction
    return model, optimizer


def step(model: ShardedModel, optimizer: ShardedAdamW, rows: Any, recipe: Recipe) -> tuple[float, float]:
    """One optimizer step on a global batch; returns loss and gradient norm."""
    layout, comm, size = model.plan.layout, model.comm, recipe.micro_batch_size
    lane, lanes = layout.lane(comm.rank), layout.batch_parallel_size
    count = len(rows) // (lanes * size)
    sums = torch.zeros(2, dtype=torch.float64)
    for m in range(count):
        mine = rows[(m * lanes + lane) * size :][:size]
        loss, tokens = model.forward_backward(
            tensor_rows(mine, recipe.length), first=m == 0, last=m == count - 1
        )
        sums += torch.stack([loss, tokens.double()])
    total = comm["gtp_remat_replica"].sum_small(sums, "loss")
    num_tokens = int(total[1])
    optimizer.finish_reductions()
    norm = optimizer.gradient_norm(num_tokens)
    optimizer.step(lr=recipe.lr, num_tokens=num_tokens, norm=norm)
    return (total[0] / total[1]).item(), norm


def train(rank: int, world_size: int, settings: dict[str, Any], recipe: Recipe) -> Trajectory | None:
    """The trajectory, from rank 0."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, optimizer = build(layout, recipe, rank)
    steps = [step(model, optimizer, rows, recipe) for rows in recipe.steps]
    weights = {name: value.clone() for name, value in logical_parameters(model)}
    if rank != 0:
        return None
    return Trajectory([s[0] for s in steps], [s[1] for s in steps], weights)
