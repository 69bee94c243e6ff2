"""The borders between what every TP rank holds alike (or a slice of the sequence of) and what TP cuts.

Legend: B batch, S sequence of this context rank, s = S / SP, H hidden, n = TP.

                   sequence parallelism            without
enter, forward     all-gather  [B,s,H] -> [B,S,H]  nothing
enter, backward    reduce-scatter, back            all-reduce
leave, forward     reduce-scatter [B,S,H]->[B,s,H] all-reduce
leave, backward    all-gather, back                nothing

The sums are over tensors that each TP rank has only a part of. Nothing is saved for the backward pass.
Source: Megatron-LM's sequence parallelism (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankloom.comm import Group

__all__ = ["TensorParallelRegion"]


@dataclass(frozen=True)
class TensorParallelRegion:
    """Enters and leaves the part of a block that TP cuts. ``group`` is tp."""

    group: Group
    sequence_parallel: bool

    def enter(self, x: Tensor) -> Tensor:
        """[B, s, H] (or [B, S, H] without SP) to [B, S, H], differentiable."""
        return x if self.group.size == 1 else _Enter.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """Partial sums [B, S, H] to their sum, [B, s, H] (or [B, S, H] without SP), differentiable."""
        return x if self.group.size == 1 else _Leave.apply(x, self)

    def spread(self, x: Tensor) -> Tensor:
        """What ``enter`` computes, outside autograd."""
        return self._gather(x) if self.sequence_parallel and self.group.size > 1 else x

    def collect(self, x: Tensor) -> Tensor:
        """What ``leave`` computes, outside autograd."""
        if self.group.size == 1:
            return x
        return self._scatter(x) if self.sequence_parallel else self.group.all_reduce(x, "tp sum")

    def _gather(self, x: Tensor) -> Tensor:
        parts = self.group.stack(x, "tp gather of the sequence")  # [n, B, s, H]
        return parts.movedim(0, 1).flatten(1, 2)

    def _scatter(self, x: Tensor) -> Tensor:
        B, S, H = x.shape
        parts = x.view(B, self.group.size, S // self.group.size, H).movedim(1, 0).contiguous()
        total = torch.empty(parts.shape[1:], dtype=torch.float32, device=x.device)
        self.group.reduce_scatter([(total, parts)], "tp sum of the sequence").wait()
        return total.to(x.dtype)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: TensorParallelRegion) -> Tensor:
        ctx.region = region
        return region.spread(x) if region.sequence_parallel else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.region.collect(grad.contiguous()), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: TensorParallelRegion) -> Tensor:
        ctx.region = region
        return region.collect(x.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.region.spread(grad) if ctx.region.sequence_parallel else grad, None
