"""A connection of this process to a Ray cluster: what the cluster is, and what Ray has no setting for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import ray

from rankloom.driver.nodes import Node
from rankloom.driver.remote import alive_nodes
from rankloom.train.signals import interrupts_ignored

__all__ = ["RayCluster", "loopback_addresses", "shut_down_quietly"]

_MOST_NODES_SHOWN = 16


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster that this process is connected to. ``how`` it came to be: for :meth:`describe`."""

    address: str
    how: Literal["started", "joined", "connected already"]
    token: bool = False

    def nodes(self, *, without: Collection[str] = ()) -> tuple[Node, ...]:
        """The nodes that are alive now, but those with ids in ``without``: Ray takes its time to notice that
        one is lost."""
        return tuple(_node_of(row) for row in alive_nodes() if row["NodeID"] not in without)

    def describe(self) -> str:
        """Which cluster this is, in a line, and a line for each node."""
        nodes = self.nodes()
        cpus, gpus = sum(node.num_cpus for node in nodes), sum(node.num_gpus for node in nodes)
        counts = f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {cpus} CPUs, {gpus} GPUs"
        if self.how == "started":
            token = "a token of its own" if self.token else "no token"
            return (
                f"Ray {ray.__version__}: started a cluster on this machine at {self.address} (loopback only, "
                f"{token}): {cpus} logical CPUs, {gpus} GPUs"
            )
        verb = {"joined": "joined the cluster", "connected already": "connected already to the cluster"}
        lines = [f"Ray {ray.__version__}: {verb[self.how]} at {self.address}: {counts}"]
        for node in nodes[:_MOST_NODES_SHOWN]:
            head = ", head" if node.is_head else ""
            lines.append(f"  {node.name}: {node.num_cpus} CPUs, {node.num_gpus} GPUs{head}")
        if len(nodes) > _MOST_NODES_SHOWN:
            lines.append(f"  and {len(nodes) - _MOST_NODES_SHOWN} more")
        return "\n".join(lines)


@contextmanager
def loopback_addresses() -> Iterator[None]:
    """Ray's way of macOS: the machine's address is that of the loopback interface, and so nothing listens on
    others. There is no setting for it."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def shut_down_quietly() -> Iterator[None]:
    """Leaves the cluster at the end, and lets Ray print nothing of its own until then.

    Ray would print to stdout, for each rank that ends, everything it may have died of. There is no setting
    for it; Ray's own debugger does the same.
    """
    from ray._private import worker

    before = worker._worker_logs_enabled
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        with interrupts_ignored():
            ray.shutdown()
        worker._worker_logs_enabled = before


def _node_of(row: dict[str, Any]) -> Node:
    resources, address = row["Resources"], row["NodeManagerAddress"]
    named = row["NodeName"] not in ("", address)  # by ray start --node-name
    return Node(
        node_id=row["NodeID"],
        address=address,
        hostname=row["NodeName"] if named else row["NodeManagerHostname"],
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        is_head="node:__internal_head__" in resources,
        labels=dict(row["Labels"]),
    )
