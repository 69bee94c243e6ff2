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
        self._groups = {name: self._make(name, view, axes) for name, (view, axes) in GROUP_AXES.items()}

    def _make(self, name: str, view: str, axes: str) -> Group:
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

    def verify(self) -> None:
        """Gathers the ranks over every real group and compares them with the layout, and the layout's
        fingerprint between all ranks. Raises RunError naming rank and axis where they disagree."""
        mine = torch.tensor([self.rank, int(self.layout.fingerprint()[:15], 16)], device=self.device)
        for name, group in self._groups.items():
            for expected, (rank, fingerprint) in zip(
                group.ranks, group.stack(mine, "start-up check").tolist(), strict=True
            ):
                if rank != expected:
                    raise RunError(
                        f"rank {self.rank}: its {name} group holds rank {rank} where the layout has rank "
                        f"{expected} (group {list(group.ranks)}); {self.layout.coords(self.rank).describe()}"
                    )
                if fingerprint != mine[1]:
                    raise RunError(
                        f"rank {rank} was started with another layout than rank {self.rank} (seen in the "
                        f"{name} group): all ranks must be given the same parallel settings"
                    )

    def close(self) -> None:
        """Destroys the process groups made here."""
        for group in self._process_groups.values():
            dist.destroy_process_group(group)
        self._process_groups.clear()
