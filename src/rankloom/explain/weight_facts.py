"""How each parameter is cut, and what a rank stores in bytes, as plain data for a page."""

from __future__ import annotations

import re

from rankloom.plan import ModelPlan, Placement

__all__ = ["parameter_facts"]

NUMBER = re.compile(r"\.\d+(?=[. ]|$)")


def parameter_facts(plan: ModelPlan) -> list[dict[str, object]]:
    """A dict for each different parameter; the layers' equal ones are one, named with a star."""
    alike: dict[tuple[object, ...], list[Placement]] = {}
    for name, p in plan.placements.items():
        alike.setdefault((NUMBER.sub(".*", name), p.spec.shape, p.spec.role), []).append(p)
    return [_parameter(str(key[0]), members) for key, members in alike.items()]


def _parameter(name: str, members: list[Placement]) -> dict[str, object]:
    p = members[0]
    shards, tp = range(p.gtp_size), range(p.tp_size)
    along_rows = p.tp_dim == 0
    return {
        "name": name if len(members) > 1 else p.name,
        "count": len(members),
        "role": p.spec.role.value,
        "shape": p.spec.shape,
        "tp_dim": p.tp_dim,
        "sharded": p.sharded,
        "tp_local_shape": p.tp_local_shape,
        "gathered_shape": p.gathered_shape,
        "shard_shape": p.shard_shape,
        # Rows of each shard, by TP coordinate where TP cuts the rows (else one entry for all of them).
        "rows": [[_dim(p, t, s, dim=0) for s in shards] for t in (tp if along_rows else (0,))],
        # Columns by TP coordinate where TP cuts the columns.
        "cols": [_dim(p, t, 0, dim=1) for t in (tp if p.tp_dim == 1 else (0,))]
        if len(p.spec.shape) > 1
        else [],
    }


def _dim(p: Placement, tp: int, shard: int, *, dim: int) -> tuple[int, int]:
    box = p.box(tp, shard)
    return box.starts[dim], box.stops[dim]
