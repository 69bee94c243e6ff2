"""The process groups of one rank, made from a layout; the only place where process groups are made."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from rankloom.comm.activity import Activity
from rankloom.comm.group import Group
from rankloom.comm.transport import NativeTransport, PeerTransport, Transport
from rankloom.errors import RunError
from rankloom.layout import GTPParallelLayout
from rankloom.plan import GROUP_AXES

__all__ = ["Communicator"]


class Communicator:
    """Groups of ``rank`` in ``layout``, each rank set made once. ``torch.distributed`` must be initialised,
    and all ranks of the layout must construct theirs together, in the same order relative to other
    communicators.

    ``timeout_s`` is what a process group itself waits; the watchdog acts before.
    """

    def __init__(
        self,
        layout: GTPParallelLayout,
        rank: int,
        *,
        device: torch.device,
        timeout_s: float,
        activity: Activity | None = None,
    ) -> None:
        self.layout = layout
        self.rank = rank
        self.device = device
        self.activity = activity if activity is not None else Activity()
        self._process_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._transports: dict[tuple[int, ...], Transport] = {}
        self._timeout = timedelta(seconds=timeout_s)
        # Ranks with different layouts would wait for each other while making groups, so "world" comes first.
        self._groups = {"world": self._make("world")}
        self._compare_layouts()
        self._groups = {name: self._groups.get(name) or self._make(name) for name in GROUP_AXES}

    def _make(self, name: str) -> Group:
        view, axes = GROUP_AXES[name]
        ranks = tuple(int(r) for r in getattr(self.layout, view).group_of(self.rank, axes))
        index = ranks.index(self.rank)
        return Group(name, ranks, index, self.activity, self._transport(ranks, index, name))

    def _transport(self, ranks: tuple[int, ...], index: int, name: str) -> Transport | None:
        """One transport a rank set, so that groups of the same ranks share its threads and its sequence of
        tags."""
        if len(ranks) == 1:
            return None
        if ranks not in self._transports:
            group = dist.new_group(
                list(ranks),
                timeout=self._timeout,
                use_local_synchronization=True,
                group_desc=f"rankloom {name}",
            )
            assert isinstance(group, dist.ProcessGroup)
            self._process_groups[ranks] = group
            kind = PeerTransport if self.device.type == "cpu" else NativeTransport
            self._transports[ranks] = kind(group, index=index, size=len(ranks))
        return self._transports[ranks]

    def __getitem__(self, name: str) -> Group:
        return self._groups[name]

    def bytes_sent(self) -> dict[str, int]:
        """Bytes this rank has handed to sends so far, by group."""
        return {name: group.bytes_sent for name, group in self._groups.items()}

    def _compare_layouts(self) -> None:
        layout = self.layout
        sizes = {**layout.axis_sizes, "sequence_parallel": int(layout.sequence_parallel)}
        mine = torch.tensor([int(layout.fingerprint()[:15], 16), *sizes.values()], device=self.device)
        world = self._groups["world"]
        told = world.stack(mine, "compare layouts").tolist()
        for rank, (fingerprint, *theirs) in zip(world.ranks, told, strict=True):
            if fingerprint != mine[0]:
                differences = [
                    f"{axis} {there} there, {here} here"
                    for (axis, here), there in zip(sizes.items(), theirs, strict=True)
                    if here != there
                ]
                raise RunError(
                    f"rank {rank} was started with another layout than rank {self.rank} "
                    f"({'; '.join(differences) or 'another rank order'}): all ranks must be given the same "
                    "parallel settings"
                )

    def verify(self) -> None:
        """Gathers the ranks over every real group and compares them with the layout. Raises RunError naming
        rank and axis where they disagree."""
        mine = torch.tensor([self.rank], device=self.device)
        for name, group in self._groups.items():
            told = group.stack(mine, "start-up check").flatten().tolist()
            for expected, rank in zip(group.ranks, told, strict=True):
                if rank != expected:
                    raise RunError(
                        f"rank {self.rank}: its {name} group holds rank {rank} where the layout has rank "
                        f"{expected} (group {list(group.ranks)}); {self.layout.coords(self.rank).describe()}"
                    )

    def close(self) -> None:
        """Destroys the process groups made here."""
        for group in self._process_groups.values():
            dist.destroy_process_group(group)
        self._process_groups.clear()
