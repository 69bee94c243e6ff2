"""Cutting tensors along the sequence as the plan's zigzag chunks say, and joining them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankloom.plan.slices import token_chunks

__all__ = ["ContextSlices"]


@dataclass(frozen=True)
class ContextSlices:
    """The cut of sequences of ``length`` tokens over ``num_ranks`` context ranks."""

    length: int
    num_ranks: int

    def __post_init__(self) -> None:
        assert self.num_ranks == 1 or self.length % (2 * self.num_ranks) == 0, (self.length, self.num_ranks)

    @property
    def local_length(self) -> int:
        return self.length // self.num_ranks

    def chunks(self, rank: int) -> tuple[tuple[int, int], ...]:
        """[start, stop) of the pieces that context rank ``rank`` holds, in its local order."""
        return token_chunks(self.length, self.num_ranks, rank)

    def take(self, tokens: Tensor, rank: int) -> Tensor:
        """The local part of ``tokens`` [B, S, ...], [B, S / C, ...]. Labels must have been shifted before."""
        return torch.cat([tokens[:, a:b] for a, b in self.chunks(rank)], dim=1)

    def join(self, parts: Tensor, *, dim: int) -> Tensor:
        """The whole sequence along ``dim`` from the parts of all ranks, stacked on dim 0 (which ``dim`` does
        not count): [C, ..., S / C, ...] to [..., S, ...]."""
        pieces = []
        for rank, part in enumerate(parts.unbind(0)):
            at = 0
            for a, b in self.chunks(rank):
                pieces.append((a, part.narrow(dim, at, b - a)))
                at += b - a
        return torch.cat([piece for _, piece in sorted(pieces, key=lambda p: p[0])], dim=dim)

    def split(self, whole: Tensor, *, dim: int) -> Tensor:
        """The inverse of ``join``, contiguous."""
        return torch.stack(
            [
                torch.cat([whole.narrow(dim, a, b - a) for a, b in self.chunks(rank)], dim=dim)
                for rank in range(self.num_ranks)
            ]
        )
