"""How each parameter is cut, and which pipeline stages hold it, as plain data for a page."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankloom.plan import ModelPlan, Placement
from rankloom.plan.stages import layer_of, parameter_stages

__all__ = ["parameter_facts"]

NUMBER = re.compile(r"\.\d+(?=[. ]|$)")


def parameter_facts(plan: ModelPlan) -> list[dict[str, object]]:
    """A dict for each different parameter; the layers' equal ones are one, named with a star."""
    alike: dict[tuple[object, ...], list[Placement]] = {}
    for name, p in plan.placements.items():
        alike.setdefault((NUMBER.sub(".*", name), p.spec.shape, p.spec.role), []).append(p)
    stages = parameter_stages(plan)
    return [
        _parameter(str(key[0]), members) | {"stages": _stages([p.name for p in members], stages)}
        for key, members in alike.items()
    ]


def _stages(names: list[str], stages: Mapping[str, tuple[int, ...]]) -> list[dict[str, object]]:
    """The stages that hold any of these, ascending, with the layers [start, stop) that each has of them; None
    for a parameter outside the layers."""
    held: dict[int, list[int | None]] = {}
    for name in names:
        for stage in stages[name]:
            held.setdefault(stage, []).append(layer_of(name))
    return [{"stage": stage, "layers": _stretch(layers)} for stage, layers in sorted(held.items())]


def _stretch(layers: list[int | None]) -> tuple[int, int] | None:
    known = [layer for layer in layers if layer is not None]
    return (min(known), max(known) + 1) if known else None


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
