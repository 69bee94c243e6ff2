"""One group of ranks and the collectives among them: every one is a gather, a plain sum or a broadcast.

A group of size 1 has no process group and sends nothing; all its operations still give the right result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankloom.comm.activity import Activity
from rankloom.comm.transport import Flight, Transport

__all__ = ["Group", "Pending"]


@dataclass
class Pending:
    """A collective under way. ``wait`` blocks (or makes the stream wait) until its result is there; once is
    enough."""

    flight: Flight
    group: str
    what: str
    sequence: int
    activity: Activity
    done: bool = False

    def wait(self) -> None:
        if self.done:
            return
        with self.activity.waiting(self.group, self.what, self.sequence):
            for work in self.flight.works:
                work.wait()
        self.flight.landed()
        self.done = True
        self.flight.keep.clear()


@dataclass
class Group:
    """The ranks of one group in ascending order. ``index`` is this rank's place among them, which is its
    index in the view the group belongs to. ``bytes_sent`` counts the tensors handed to each send of this
    rank."""

    name: str
    ranks: tuple[int, ...]
    index: int
    activity: Activity
    transport: Transport | None  # None for a group of one
    bytes_sent: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def _key(self, what: str) -> str:
        """Groups of the same ranks share a transport."""
        return f"{self.name}: {what}"

    def _launch(self, what: str, start: Callable[[Transport], Flight], alone: Callable[[], None]) -> Pending:
        if self.transport is None:
            alone()
            return Pending(Flight([], 0), self.name, what, 0, self.activity, done=True)
        sequence = self.activity.launched(self.name, what)
        flight = start(self.transport)
        self.bytes_sent += flight.bytes_sent
        return Pending(flight, self.name, what, sequence, self.activity)

    def all_gather(self, pairs: Sequence[tuple[Tensor, Tensor]], what: str) -> Pending:
        """Fills each ``full`` [n * k] with every member's ``own`` [k], in member order. Contiguous, one dtype
        a pair; ``own`` may be this rank's chunk of ``full``."""

        def alone() -> None:
            for full, own in pairs:
                if full.data_ptr() != own.data_ptr():
                    full.view(-1).copy_(own.view(-1))

        return self._launch(what, lambda t: t.all_gather(pairs, self._key(what)), alone)

    def reduce_scatter(
        self, pairs: Sequence[tuple[Tensor, Tensor]], what: str, *, accumulate: bool = False
    ) -> Pending:
        """Sums chunk ``index`` of every member's ``full`` [n * k] into ``total`` [k], in the dtype of
        ``total`` and in member order. With ``accumulate`` the sum is added to what ``total`` holds. ``total``
        may be this rank's own chunk of ``full`` only without ``accumulate`` and in a group whose sum is not
        yet read elsewhere."""

        def alone() -> None:
            for total, full in pairs:
                if accumulate:
                    total.view(-1).add_(full.view(-1))
                else:
                    total.view(-1).copy_(full.view(-1))

        return self._launch(
            what, lambda t: t.reduce_scatter(pairs, self._key(what), accumulate=accumulate), alone
        )

    def broadcast(self, tensor: Tensor, what: str, *, root: int = 0) -> Pending:
        """Copies ``tensor`` of member ``root`` to all."""
        return self._launch(what, lambda t: t.broadcast(tensor, self._key(what), root=root), lambda: None)

    def all_reduce(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of all members' tensors, in the same shape and dtype (in a group of one, the tensor
        itself); bf16 is summed in fp32.

        A reduce-scatter and an all-gather: 2 (n - 1) ceil(numel / n) elements sent a rank.
        """
        if self.size == 1:
            return tensor
        chunk = -(-tensor.numel() // self.size)
        flat = tensor.new_zeros(chunk * self.size)
        flat[: tensor.numel()].copy_(tensor.reshape(-1))
        wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        total = torch.empty(chunk, dtype=wide, device=tensor.device)
        self.reduce_scatter([(total, flat)], what).wait()
        own = flat.view(self.size, -1)[self.index]
        own.copy_(total)
        self.all_gather([(flat, own)], what).wait()
        return flat[: tensor.numel()].view(tensor.shape)

    def stack(self, tensor: Tensor, what: str) -> Tensor:
        """Every member's tensor, [n, *shape], in member order."""
        full = tensor.new_empty((self.size, *tensor.shape))
        self.all_gather([(full, tensor.contiguous())], what).wait()
        return full

    def sum_small(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of a few numbers over the members: gathered, then added in member order on every rank, so
        that all of them hold the same bits. (n - 1) numel elements sent a rank."""
        total = torch.zeros_like(tensor)
        for part in self.stack(tensor, what):
            total += part
        return total
