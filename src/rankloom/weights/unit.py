"""One gather unit at run time: what this rank stores of it, what it gathers, and how its gradient comes home.

stored          flat buffer of shards, [stored_numel], dtype of the model; always there
gathered        the whole TP-local weights, only from just before their use until just after
gradient input  fp32, as large as a gathered weight: this rank's gradient before the reduce-scatter
gradients       fp32 [stored_numel]: the sum over gtp_remat of all microbatches so far

With GTP_remat 1 the stored shards are the weights: nothing is gathered or copied, and gradients are written
in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rankloom.comm import Communicator, Group, Pending
from rankloom.plan import FlatUnit, Placement

__all__ = ["WeightUnit"]


class WeightUnit:
    """``num_users`` says how many modules use each weight (2 for a tied one): a unit's gradient is complete
    when all of them have written theirs, in whatever order."""

    def __init__(
        self, unit: FlatUnit, comm: Communicator, *, dtype: torch.dtype, num_users: Mapping[str, int]
    ) -> None:
        self.plan = unit
        self.name = unit.name
        self.stored = torch.zeros(unit.stored_numel, dtype=dtype, device=comm.device)
        self.gradients = torch.zeros(unit.stored_numel, dtype=torch.float32, device=comm.device)
        self._group: Group = comm["gtp_remat"]
        self._tp = comm["tp"].index
        self._placements = {p.name: p for p in unit.placements}
        self._num_users = dict(num_users)
        self._gathered: dict[str, Tensor] = {}
        self._gathering: Pending | None = None
        self._refill: Pending | None = None  # stored pieces on their way from the other replicas
        self._inputs: dict[str, Tensor] = {}
        self._written: dict[str, int] = {}

    @property
    def remat(self) -> bool:
        """Whether weights must be gathered at all."""
        return self._group.size > 1

    def placement(self, name: str) -> Placement:
        return self._placements[name]

    def shard(self, name: str) -> Tensor:
        """This rank's shard [shard_rows, cols], a view of ``stored``."""
        return self._view(self.stored, name)

    def _view(self, flat: Tensor, name: str) -> Tensor:
        p = self._placements[name]
        return flat.narrow(0, self.plan.offsets[name], p.shard_numel).view(p.shard_shape)

    def _logical_rows(self, name: str) -> int:
        return self._placements[name].tp_box(self._tp).shape[0]

    # -- weights --

    def refill_after(self, pending: Pending) -> None:
        """The stored shards are complete only after ``pending``; it is waited for at the next use."""
        self._refill = pending

    def settle(self) -> None:
        """Waits until the stored shards are complete."""
        if self._refill is not None:
            self._refill.wait()
            self._refill = None

    def launch_gather(self) -> None:
        """Starts gathering, unless the weights are there or already coming."""
        if not self.remat or self._gathered:
            return
        self.settle()
        self._gathered = {n: self.stored.new_empty(p.gathered_shape) for n, p in self._placements.items()}
        pairs = [(full, self.shard(name)) for name, full in self._gathered.items()]
        self._gathering = self._group.all_gather(pairs, f"gather {self.name}")

    def weight(self, name: str) -> Tensor:
        """The TP-local weight without padding rows, [logical rows, cols]; gathered if it was not."""
        rows = self._logical_rows(name)
        if not self.remat:
            self.settle()
            return self.shard(name)[:rows]
        self.launch_gather()
        self._await_gather()
        return self._gathered[name][:rows]

    def _await_gather(self) -> None:
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def release(self) -> None:
        """Frees the gathered weights."""
        self._await_gather()
        self._gathered = {}

    # -- gradients --

    def add_gradient(self, name: str, grad_output: Tensor, inputs: Tensor, *, first_microbatch: bool) -> None:
        """Adds grad_output^T @ inputs: [T, logical rows] and [T, cols], T tokens."""
        target, fresh = self._target(name, first_microbatch)
        if grad_output.dtype is torch.float32:
            torch.addmm(target, grad_output.t(), inputs, beta=0 if fresh else 1, out=target)
        elif fresh:
            target.copy_(grad_output.t() @ inputs)
        else:
            target.add_(grad_output.t() @ inputs)

    def add_row_gradient(self, name: str, rows: Tensor, grad_rows: Tensor, *, first_microbatch: bool) -> None:
        """Adds ``grad_rows`` [n, cols] to the gradient of the given ``rows`` [n] of the TP-local weight."""
        target, fresh = self._target(name, first_microbatch)
        if fresh:
            target.zero_()
        target.index_add_(0, rows, grad_rows.to(torch.float32))

    def _target(self, name: str, first_microbatch: bool) -> tuple[Tensor, bool]:
        """Where the gradient of the logical rows goes, and whether that still holds old values."""
        rows = self._logical_rows(name)
        if not self.remat:
            fresh = first_microbatch and name not in self._inputs
            self._inputs.setdefault(name, self._view(self.gradients, name)[:rows])
            return self._inputs[name], fresh
        fresh = name not in self._inputs
        if fresh:
            full = self.gradients.new_empty(self._placements[name].gathered_shape)
            full[rows:].zero_()
            self._inputs[name] = full
        return self._inputs[name][:rows], fresh

    def gradient_written(self, name: str) -> bool:
        """One user of ``name`` is done. True when all users of all weights of the unit are."""
        self._written[name] = self._written.get(name, 0) + 1
        return self._written == self._num_users

    def launch_reduction(self, *, first_microbatch: bool) -> Pending | None:
        """Reduce-scatters the unit's gradient over gtp_remat into ``gradients``; None when there is nothing
        to send."""
        inputs, self._inputs, self._written = self._inputs, {}, {}
        if not self.remat:
            return None
        pairs = [(self._view(self.gradients, name), full) for name, full in inputs.items()]
        return self._group.reduce_scatter(pairs, f"reduce {self.name}", accumulate=not first_microbatch)
