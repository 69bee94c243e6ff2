"""Norms, biases and other small parameters: whole on every rank of a TP coordinate, in one flat buffer.

They are ordinary parameters to autograd, so that unmodified modules can use them; their gradients are moved
into the fp32 buffer as soon as autograd has them. The first ``partial_numel`` elements are those whose
gradient every TP rank has only a part of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankloom.comm import Communicator, Pending
from rankloom.plan import FlatUnit, Placement

__all__ = ["SmallUnit"]


class SmallUnit:
    """``stored`` [stored_numel] in the dtype of the model, ``gradients`` fp32 [stored_numel]."""

    def __init__(self, unit: FlatUnit, comm: Communicator, *, dtype: torch.dtype, partial_numel: int) -> None:
        self.plan = unit
        self.name = unit.name
        self.stored = torch.zeros(unit.stored_numel, dtype=dtype, device=comm.device)
        self.gradients = torch.zeros(unit.stored_numel, dtype=torch.float32, device=comm.device)
        self._tp = comm["tp"]
        self._partial_numel = partial_numel
        self._refill: Pending | None = None
        self.parameters = {p.name: self._parameter(p) for p in unit.placements}

    def _parameter(self, placement: Placement) -> nn.Parameter:
        at, numel = self.plan.offsets[placement.name], placement.shard_numel
        parameter = nn.Parameter(self.stored[at : at + numel].view(placement.shard_shape))
        target = self.gradients[at : at + numel].view(placement.shard_shape)

        def move(p: Tensor) -> None:
            assert p.grad is not None
            target.add_(p.grad)
            p.grad = None

        parameter.register_post_accumulate_grad_hook(move)
        return parameter

    def shard(self, name: str) -> Tensor:
        """The stored tensor of one parameter."""
        return self.parameters[name].detach()

    def begin(self, *, first: bool) -> None:
        """Starts a microbatch: values must be complete, and the first of a step starts from zero
        gradients."""
        self.settle()
        if first:
            self.gradients.zero_()

    def refill_after(self, pending: Pending) -> None:
        self._refill = pending

    def settle(self) -> None:
        """Waits until the stored values are complete."""
        if self._refill is not None:
            self._refill.wait()
            self._refill = None

    def sum_partial(self) -> None:
        """Sums over tp the gradients that are partial there; once, after the last microbatch of a step."""
        if self._partial_numel and self._tp.size > 1:
            part = self.gradients[: self._partial_numel]
            part.copy_(self._tp.all_reduce(part, "tp sum of partial gradients"))
