"""The nodes of a cluster, and whether a job has room on them. Plain data; no Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout

__all__ = ["Device", "Node", "device_of", "refuse_shortage"]

Device = Literal["cpu", "cuda"]
_WORDS: Mapping[Device, str] = {"cpu": "CPU", "cuda": "GPU"}
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Node:
    """One node: what it is called, where it answers, how many CPUs and GPUs it offers. ``hostname`` is the
    name that it was started with, if it has one."""

    node_id: str
    address: str
    hostname: str
    num_cpus: int
    num_gpus: int
    is_head: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ "gpu-03 (10.0.0.3)"."""
        return self.hostname if self.hostname == self.address else f"{self.hostname} ({self.address})"

    def room(self, device: Device) -> int:
        """How many ranks it can hold: one a GPU, or one a (logical) CPU."""
        return self.num_gpus if device == "cuda" else self.num_cpus


def device_of(setting: Literal["auto", "cpu", "cuda"], nodes: Sequence[Node]) -> Device:
    """What ``cluster.device`` means here: ``auto`` is cuda where any node offers a GPU."""
    if setting != "auto":
        return setting
    return "cuda" if any(node.num_gpus for node in nodes) else "cpu"


def refuse_shortage(
    nodes: Sequence[Node], layout: GTPParallelLayout, *, device: Device, where: str = ""
) -> None:
    """Raises UserError where the nodes have no room for all ranks, with both numbers and where the room is.

    ``where``: where the world size came from, as ``resolved.where`` says it.
    """
    needed, usable = layout.world_size, sum(node.room(device) for node in nodes)
    if needed <= usable:
        return
    unit = _WORDS[device]
    origin = f" ({where})" if where else ""
    raise UserError(
        f"cluster.world_size {needed} needs {needed} {unit}s, usable {usable}: {_rooms(nodes, device)}; "
        f"{_remedy(layout, usable=usable, device=device)}{origin}"
    )


def _rooms(nodes: Sequence[Node], device: Device) -> str:
    """ "3 nodes x 8, the head node gpu-00 (10.0.0.1) offers none"."""
    sizes = Counter(node.room(device) for node in nodes if node.room(device))
    texts = [f"{count} node{'s' * (count > 1)} x {size}" for size, count in sorted(sizes.items())[::-1]]
    empty = [node for node in nodes if not node.room(device)]
    shown = [f"the head node {node.name} offers none" for node in empty if node.is_head]
    workers = [node.name for node in empty if not node.is_head]
    if workers:
        more = f" and {len(workers) - _MOST_SHOWN} more" if len(workers) > _MOST_SHOWN else ""
        offer = "offer" if len(workers) > 1 else "offers"
        shown.append(f"{', '.join(workers[:_MOST_SHOWN])}{more} {offer} none")
    return ", ".join([*texts, *shown]) or "there is no node"


def _remedy(layout: GTPParallelLayout, *, usable: int, device: Device) -> str:
    step = layout.world_size // layout.data_parallel_size
    fitting = usable // step * step
    tries = [f"try cluster.world_size {fitting}"] if fitting else []
    if device == "cuda":
        tries.append("start Ray on more nodes with GPUs" if usable else "set cluster.device to cpu")
    else:
        tries.append("start Ray on more nodes, or with a larger --num-cpus")
    return ", or ".join(tries)
