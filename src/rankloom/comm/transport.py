"""How bytes move inside one process group: point to point on gloo, native collectives elsewhere (NCCL).

Both transports offer the same two primitives on lists of tensors, asynchronously; everything else is built
from them. Gloo's own all-gather and reduce-scatter send 1.3 to 2 times the bytes needed, so there they are
exchanges between peers: (n - 1) messages a rank, received in place. Every exchange has tags of its own, so
two of them launched in a different order on two ranks can never swap data: they wait for each other, and the
watchdog names them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Flight", "NativeTransport", "PeerTransport", "Transport"]

_TAG_BITS = (1 << 30) - 1


class Work(Protocol):
    def wait(self) -> object: ...


@dataclass
class Flight:
    """Operations under way. ``landed`` runs after all of them, e.g. to sum what arrived; ``keep`` holds their
    tensors."""

    works: Sequence[Work]
    bytes_sent: int
    landed: Callable[[], None] = lambda: None
    keep: list[Tensor] = field(default_factory=list)


class Transport(Protocol):
    """``pairs`` are (full [n * k], own [k]) for a gather and (total fp32 or fp64 [k], full [n * k]) for a
    reduction; ``key`` is the same on all members."""

    def all_gather(self, pairs: Sequence[tuple[Tensor, Tensor]], key: str) -> Flight: ...

    def reduce_scatter(
        self, pairs: Sequence[tuple[Tensor, Tensor]], key: str, *, accumulate: bool
    ) -> Flight: ...

    def broadcast(self, tensor: Tensor, key: str, *, root: int) -> Flight: ...


def _add(total: Tensor, chunks: Sequence[Tensor], *, accumulate: bool) -> None:
    """Sums in member order, in the dtype of ``total``: the same bits whichever message came first."""
    rest = chunks
    if not accumulate:
        total.copy_(chunks[0])
        rest = chunks[1:]
    for chunk in rest:
        total.add_(chunk)


class PeerTransport:
    """Exchanges over gloo; ``index`` is this rank's place among the ``size`` members."""

    def __init__(self, process_group: dist.ProcessGroup, *, index: int, size: int) -> None:
        self._pg = process_group
        self._index = index
        self._size = size
        self._exchanged: Counter[str] = Counter()

    def _tag(self, key: str) -> int:
        """Messages with equal tags arrive in the order of their launch, should two keys ever share one."""
        self._exchanged[key] += 1
        return zlib.crc32(f"{key}:{self._exchanged[key]}".encode()) & _TAG_BITS

    def _peers(self) -> list[tuple[int, int]]:
        """(send to, receive from), each rank starting with its neighbour so that no rank is flooded."""
        return [
            ((self._index + d) % self._size, (self._index - d) % self._size) for d in range(1, self._size)
        ]

    def all_gather(self, pairs: Sequence[tuple[Tensor, Tensor]], key: str) -> Flight:
        works: list[Work] = []
        sent = 0
        for full, own in pairs:
            chunks, flat, tag = full.view(self._size, -1), own.view(-1), self._tag(key)
            for to, source in self._peers():
                works.append(self._pg.recv([chunks[source]], source, tag))
                works.append(self._pg.send([flat], to, tag))
                sent += flat.numel() * flat.element_size()
            if chunks[self._index].data_ptr() != flat.data_ptr():
                chunks[self._index].copy_(flat)
        return Flight(works, sent, keep=[t for pair in pairs for t in pair])

    def reduce_scatter(self, pairs: Sequence[tuple[Tensor, Tensor]], key: str, *, accumulate: bool) -> Flight:
        works: list[Work] = []
        sent = 0
        sums: list[tuple[Tensor, list[Tensor]]] = []
        for total, full in pairs:
            chunks, tag = list(full.view(self._size, -1).unbind(0)), self._tag(key)
            arrived = list(chunks)
            for to, source in self._peers():
                arrived[source] = torch.empty_like(chunks[source])
                works.append(self._pg.recv([arrived[source]], source, tag))
                works.append(self._pg.send([chunks[to]], to, tag))
                sent += chunks[to].numel() * chunks[to].element_size()
            sums.append((total.view(-1), arrived))

        def landed() -> None:
            for total, arrived in sums:
                _add(total, arrived, accumulate=accumulate)

        return Flight(works, sent, landed, keep=[full for _, full in pairs])

    def broadcast(self, tensor: Tensor, key: str, *, root: int) -> Flight:
        tag = self._tag(key)
        if self._index != root:
            return Flight([self._pg.recv([tensor], root, tag)], 0, keep=[tensor])
        works: list[Work] = [self._pg.send([tensor], to, tag) for to, _ in self._peers()]
        return Flight(works, tensor.numel() * tensor.element_size() * len(works), keep=[tensor])


class NativeTransport:
    """The backend's own collectives. Bytes are those of a ring: (n - 1) / n of the full tensor a rank.

    ``wait`` of a flight makes the current stream wait, not the host; tensors are held until then, so the
    caching allocator cannot hand their memory out while the communication stream still reads it."""

    def __init__(self, process_group: dist.ProcessGroup, *, index: int, size: int) -> None:
        self._pg = process_group
        self._index = index
        self._size = size

    def all_gather(self, pairs: Sequence[tuple[Tensor, Tensor]], key: str) -> Flight:
        with dist._coalescing_manager(group=self._pg, async_ops=True) as works:
            for full, own in pairs:
                dist.all_gather_single(full.view(-1), own.view(-1), group=self._pg)
        sent = sum((self._size - 1) * own.numel() * own.element_size() for _, own in pairs)
        return Flight([works], sent, keep=[t for pair in pairs for t in pair])

    def reduce_scatter(self, pairs: Sequence[tuple[Tensor, Tensor]], key: str, *, accumulate: bool) -> Flight:
        # An exchange and a local sum: as many bytes as a reduce-scatter, and bf16 is summed in fp32.
        works: list[Work] = []
        arrived: list[Tensor] = []
        for _, full in pairs:
            arrived.append(torch.empty_like(full.view(-1)))
            work = dist.all_to_all_single(arrived[-1], full.view(-1), group=self._pg, async_op=True)
            works.append(work)

        def landed() -> None:
            for (total, _), parts in zip(pairs, arrived, strict=True):
                _add(total.view(-1), parts.view(self._size, -1).unbind(0), accumulate=accumulate)

        sent = sum((self._size - 1) * t.numel() * t.element_size() for t, _ in _chunked(pairs))
        return Flight(works, sent, landed, keep=[full for _, full in pairs])

    def broadcast(self, tensor: Tensor, key: str, *, root: int) -> Flight:
        work = dist.broadcast(tensor, group=self._pg, group_src=root, async_op=True)
        sent = tensor.numel() * tensor.element_size() * (self._size - 1) if self._index == root else 0
        return Flight([work], sent, keep=[tensor])


def _chunked(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """(one member's chunk of the full tensor, total) of each pair."""
    return [(full.view(-1)[: total.numel()], total) for total, full in pairs]
