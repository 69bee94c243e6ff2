"""Are all copies of a parameter the same bits? A missing or doubled gradient sum shows here first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankloom.comm import Group
from rankloom.errors import RunError
from rankloom.models.sharded import ShardedModel
from rankloom.plan import Placement

__all__ = ["verify_copies"]


def verify_copies(model: ShardedModel) -> None:
    """Compares checksums of every stored parameter over the ranks that store copies of it: shards over
    replica, small parameters over gtp_remat x replica, and those that TP does not cut over tp too. A
    collective of all ranks.

    Raises RunError naming the parameter and two ranks.
    """
    shards = [(p, unit.shard(p.name)) for unit in model.units for p in unit.plan.placements]
    small = [(p, model.small.shard(p.name)) for p in model.small.plan.placements]
    for unit in model.stores:
        unit.settle()
    _compare(shards, model.comm["replica"])
    _compare(small, model.comm["gtp_remat_replica"])
    _compare([(p, t) for p, t in small if p.tp_dim is None], model.comm["tp"])


def _compare(parameters: Sequence[tuple[Placement, Tensor]], group: Group) -> None:
    if not parameters:
        return
    sums = torch.stack([_checksum(tensor) for _, tensor in parameters])
    told = group.stack(sums, "compare copies of parameters")
    different = (told != told[0]).any(dim=-1).nonzero().tolist()
    if different:
        member, at = different[0]
        raise RunError(
            f"{parameters[at][0].name} differs between rank {group.ranks[0]} and rank "
            f"{group.ranks[member]}, which hold copies of it ({group.name} group {list(group.ranks)}): "
            "a gradient sum over this group is wrong"
        )


def _checksum(tensor: Tensor) -> Tensor:
    """Two 64-bit sums over the bits of ``tensor``, one of them weighted by position; int64 [2]."""
    bits = tensor.detach().contiguous().view(torch.uint8).flatten().long()
    position = torch.arange(1, bits.numel() + 1, device=bits.device)
    return torch.stack([bits.sum(), (bits * position).sum()])
