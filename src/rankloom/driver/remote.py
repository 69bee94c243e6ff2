"""What the types of Ray leave open, in one place: an actor handle has methods that no type checker sees."""

from __future__ import annotations

from typing import Any, TypeAlias

import ray

__all__ = ["Actor", "alive_nodes", "make_actor"]

Actor: TypeAlias = Any  # a handle: handle.method.remote(...) gives an ObjectRef


def make_actor(actor_class: type, *args: Any, **options: Any) -> Actor:
    """Starts an actor and does not wait for it. It is never restarted: its state would be lost."""
    return ray.remote(actor_class).options(max_restarts=0, **options).remote(*args)


def alive_nodes() -> list[dict[str, Any]]:
    """What Ray knows of each node that is alive: NodeID, NodeManagerAddress, Resources, Labels and more."""
    return [row for row in ray.nodes() if row["Alive"]]  # type: ignore[no-untyped-call]
