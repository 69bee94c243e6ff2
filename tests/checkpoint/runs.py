"""Training bodies with saves and loads in them, and the state of a whole run gathered without the package's
own boxes: whole flat buffers, then shards, then TP slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankloom.checkpoint import Checkpointer, Loaded, load
from rankloom.layout import GTPParallelLayout
from rankloom.models import ShardedModel, logical_parameters
from rankloom.optim import ShardedAdamW
from rankloom.plan import Placement
from tests.runtime.models import Recipe, random_rows
from tests.runtime.sharded import build, step

LENGTH, NUM_ROWS = 48, 4
TP, W, Q, CP, ORDER = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "rank_order",
)
# Sizes of worlds and cuts that leave odd remainders: 101 rows over 3, 4, 6 and 2 x 2 ranks.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (1, {}),
    "2 TP2": (2, {TP: 2}),
    "3 W3 Q3": (3, {W: 3, Q: 3}),
    "4 W4": (4, {W: 4}),
    "4 TP2 W4": (4, {TP: 2, W: 4}),
    "4 W2 CP2": (4, {W: 2, CP: 2}),
    "6 W6 Q3": (6, {W: 6, Q: 3}),
    "8 TP2 W4 Q4 CP2 other-order": (8, {TP: 2, W: 4, Q: 4, CP: 2, ORDER: "tp-cp-gtp-dp-pp"}),
}
KINDS = ("weight", "master", "exp_avg", "exp_avg_sq")


def recipe(family: str = "qwen3", *, num_steps: int = 6, **changes: Any) -> Recipe:
    steps = tuple(tuple(random_rows(NUM_ROWS, length=LENGTH, seed=s)) for s in range(num_steps))
    return Recipe(family=family, steps=steps, length=LENGTH, **changes)


@dataclass
class Outcome:
    """Of rank 0: losses and norms of the steps taken, and all logical tensors at the save or load."""

    losses: list[float]
    norms: list[float]
    tensors: dict[str, Tensor]
    loaded: Loaded | None = None
    notes: tuple[str, ...] = ()


def started(rank: int, world_size: int, settings: Mapping[str, Any], r: Recipe) -> tuple[Any, Any]:
    return build(GTPParallelLayout.resolve(world_size=world_size, **settings), r, rank)


def take(model: Any, optimizer: Any, r: Recipe, first: int, last: int) -> list[tuple[float, float]]:
    return [step(model, optimizer, rows, r) for rows in r.steps[first:last]]


def save_and_go_on(
    rank: int, world_size: int, settings: Mapping[str, Any], r: Recipe, directory: Path, at: int = 3
) -> Outcome | None:
    """Trains, saves in the background after step ``at``, trains on."""
    model, optimizer = started(rank, world_size, settings, r)
    before = take(model, optimizer, r, 0, at)
    checkpointer = Checkpointer(model, optimizer, directory)
    checkpointer.save(at, state={"consumed_samples": at * NUM_ROWS})
    tensors = whole_tensors(model, optimizer)
    after = take(model, optimizer, r, at, len(r.steps))
    checkpointer.wait()
    return _outcome(rank, before + after, tensors)


def load_and_go_on(
    rank: int, world_size: int, settings: Mapping[str, Any], r: Recipe, folder: Path, at: int = 3
) -> Outcome | None:
    model, optimizer = started(rank, world_size, settings, r)
    loaded = load(model, optimizer, folder)
    tensors = whole_tensors(model, optimizer)
    outcome = _outcome(rank, take(model, optimizer, r, at, len(r.steps)), tensors)
    if outcome is not None:
        outcome.loaded, outcome.notes = loaded, loaded.notes
    return outcome


def _outcome(rank: int, steps: list[tuple[float, float]], tensors: dict[str, Tensor]) -> Outcome | None:
    return Outcome([s[0] for s in steps], [s[1] for s in steps], tensors) if rank == 0 else None


def whole_tensors(model: ShardedModel, optimizer: ShardedAdamW) -> dict[str, Tensor]:
    """Every tensor of KINDS by "<kind>/<name>", of logical shape, on every rank. A collective."""
    found = {f"weight/{name}": value.clone() for name, value in logical_parameters(model)}
    if not optimizer.num_updates:
        return found
    for piece in optimizer.pieces:
        low = piece._group.index * piece.unit.plan.piece_numel
        for k, kind in enumerate(KINDS[1:]):
            flat = torch.zeros(piece.unit.plan.piece_numel)
            for part in piece.parts:
                value = (part.master, *optimizer.moments(part))[k]
                flat[part.range.start - low : part.range.stop - low] = value
            whole = piece._group.stack(flat, f"test: {kind}").flatten()
            for placement in piece.unit.plan.placements:
                at = piece.unit.plan.offsets[placement.name]
                shard = whole[at : at + placement.shard_numel].view(placement.shard_shape)
                found[f"{kind}/{placement.name}"] = _logical(model, placement, shard)
    return found


def _logical(model: ShardedModel, placement: Placement, shard: Tensor) -> Tensor:
    if placement.sharded:
        shard = model.comm["gtp_remat"].stack(shard, "test").flatten(0, 1)
    local = shard[: placement.tp_local_shape[0]].contiguous()
    if placement.tp_dim is None or placement.tp_size == 1:
        return local.clone()
    parts = model.comm["tp"].stack(local, "test").unbind(0)
    return torch.cat(list(parts), dim=placement.tp_dim)[: placement.spec.shape[0]].clone()
