"""Gather units of a few hand-made parameters, filled with whole values, on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.plan import FlatUnit, ParameterSpec, Placement, Role, place
from rankloom.weights import GatherSchedule, GradientReducer, SmallUnit, WeightHandle, WeightUnit

TP, W, Q, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
)


def communicator(rank: int, world_size: int, settings: Mapping[str, Any]) -> Communicator:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    return Communicator(layout, rank, device=torch.device("cpu"), timeout_s=30)


@dataclass
class Units:
    """One gather unit and the small parameters beside it, with a handle for every weight."""

    comm: Communicator
    weights: WeightUnit
    small: SmallUnit
    schedule: GatherSchedule
    reducer: GradientReducer

    @classmethod
    def make(
        cls,
        comm: Communicator,
        roles: Mapping[str, tuple[Role, tuple[int, ...]]],
        *,
        dtype: torch.dtype = torch.float32,
        num_users: int = 1,
    ) -> Units:
        placements = [_place(comm, name, role, shape) for name, (role, shape) in roles.items()]
        replicas = comm["replica"].size
        unit = FlatUnit("unit", tuple(p for p in placements if p.sharded), replicas)
        small = tuple(p for p in placements if not p.sharded)
        partial = sum(p.shard_numel for p in small if p.grad_partial_over_tp)
        weights = WeightUnit(unit, comm, dtype=dtype, num_users={p.name: num_users for p in unit.placements})
        return cls(
            comm=comm,
            weights=weights,
            small=SmallUnit(
                FlatUnit("small", small, comm["gtp_remat_replica"].size),
                comm,
                dtype=dtype,
                partial_numel=partial,
            ),
            schedule=GatherSchedule([weights], training_visits=["unit"]),
            reducer=GradientReducer(),
        )

    def handle(self, name: str) -> WeightHandle:
        return WeightHandle(self.weights, name, self.schedule, self.reducer)

    def fill(self, values: Mapping[str, Tensor]) -> None:
        tp, shard = self.comm["tp"].index, self.comm["gtp_remat"].index
        for unit in (self.weights, self.small):
            for p in unit.plan.placements:
                box = p.box(tp, shard if p.sharded else 0)
                unit.shard(p.name)[: box.shape[0]].copy_(cut(values[p.name], p, tp, shard))

    def begin(self, *, first: bool = True, last: bool = True) -> None:
        self.small.begin(first=first)
        self.schedule.begin("train")
        self.reducer.begin(first=first, last=last)

    def end(self) -> None:
        self.reducer.drain()
        self.schedule.end()

    def gradient(self, name: str) -> Tensor:
        """What this rank holds of a parameter's gradient, without padding."""
        small = name not in self.weights.plan.offsets
        unit = self.small if small else self.weights
        placement = next(p for p in unit.plan.placements if p.name == name)
        box = placement.box(self.comm["tp"].index, 0 if small else self.comm["gtp_remat"].index)
        flat = unit.gradients[unit.plan.offsets[name] :][: placement.shard_numel]
        return flat.view(placement.shard_shape)[: box.shape[0]].clone()

    def rows_here(self, name: str, whole: Tensor) -> Tensor:
        """The part of a whole parameter, or of its gradient, that this rank stores."""
        unit = self.weights if name in self.weights.plan.offsets else self.small
        placement = next(p for p in unit.plan.placements if p.name == name)
        return cut(whole, placement, self.comm["tp"].index, self.comm["gtp_remat"].index)


def cut(whole: Tensor, placement: Placement, tp: int, shard: int) -> Tensor:
    box = placement.box(tp, shard if placement.sharded else 0)
    return whole[tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))]


def _place(comm: Communicator, name: str, role: Role, shape: tuple[int, ...]) -> Placement:
    spec = ParameterSpec(name, shape, role, "unit" if len(shape) == 2 else "small")
    layout = comm.layout
    return place(
        spec,
        tp_size=layout.tensor_model_parallel_size,
        gtp_size=layout.gtp_remat_size,
        sequence_parallel=layout.sequence_parallel,
    )
