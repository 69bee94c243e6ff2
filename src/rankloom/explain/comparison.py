"""Two jobs compared: sizes, settings, every rank that is in both, groups and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankloom.explain.comparison_types import (
    FIELDS,
    Comparison,
    Difference,
    GroupChange,
    LinkChange,
    Mask,
    RankChanges,
)
from rankloom.explain.job_settings import job_settings
from rankloom.explain.rank_facts import KINDS
from rankloom.layout import PLAIN_RESHAPE, Driver, GTPParallelLayout, compare_driver
from rankloom.layout.axes import IntArray
from rankloom.plan.job import Job
from rankloom.plan.links import Crossing, crossings

__all__ = ["Comparison", "compare", "comparison_object"]

# Field of a rank -> the size of which it is a place.
SHARES_OF_WEIGHTS = {
    "tp": "tensor_model_parallel_size",
    "weight_shard": "gtp_remat_size",
    "pp": "pipeline_model_parallel_size",
}


def compare(a: Job, b: Job, *, notes: Sequence[str] = ()) -> Comparison:
    """Everything that differs between two jobs. Ranks are compared by their global numbers.

    ``notes``: sentences to end the verdict with.
    """
    ranks = _rank_changes(a, b)
    return Comparison(
        a=a,
        b=b,
        sizes=_different_sizes(a.layout, b.layout),
        settings=_different_settings(a, b),
        ranks=ranks,
        only_a=a.layout.world_size - len(ranks.ranks),
        only_b=b.layout.world_size - len(ranks.ranks),
        other_rows=_other_share(a, b, ranks, {"lane": "batch_parallel_size"}),
        other_tokens=_other_share(a, b, ranks, {"context": "runtime_context_parallel_size"}),
        other_shard=_other_share(a, b, ranks, SHARES_OF_WEIGHTS),
        groups=_group_changes(a.layout, b.layout),
        links=_link_changes(a, b),
        rows_per_lane=(_rows_per_lane(a), _rows_per_lane(b)),
        parameter_bytes=(a.parameter_bytes, b.parameter_bytes),
        reshape_wrong=(_reshape_wrong(a.layout), _reshape_wrong(b.layout)),
        notes=tuple(notes),
    )


def _different_sizes(a: GTPParallelLayout, b: GTPParallelLayout) -> tuple[Difference, ...]:
    pairs = zip(a.sizes.items(), b.sizes.values(), strict=True)
    return tuple(Difference(name, old, new) for (name, old), new in pairs if old != new)


def _different_settings(a: Job, b: Job) -> tuple[Difference, ...]:
    """By value; the same value from another source is no difference."""
    of_a, of_b = ({row.key: row for row in job_settings(job)} for job in (a, b))
    found = []
    for key in dict.fromkeys((*of_a, *of_b)):
        old, new = of_a.get(key), of_b.get(key)
        values = (old.value if old else None, new.value if new else None)
        if values[0] != values[1]:
            found.append(Difference(key, *values, old.source if old else "", new.source if new else ""))
    return tuple(found)


def _rank_changes(a: Job, b: Job) -> RankChanges:
    first = max(a.layout.ranks.start, b.layout.ranks.start)
    stop = min(a.layout.ranks.stop, b.layout.ranks.stop)
    ranks = np.arange(first, max(first, stop), dtype=np.int64)
    return RankChanges(ranks, _fields(a, ranks), _fields(b, ranks))


def _fields(job: Job, ranks: IntArray) -> Mapping[str, IntArray]:
    at = ranks - job.layout.rank_offset
    arrays = job.layout.coord_arrays() | {"domain": job.topology.domains, "node": job.topology.nodes}
    return {name: arrays[name][at] for name in FIELDS}


def _other_share(a: Job, b: Job, ranks: RankChanges, sizes: Mapping[str, str]) -> Mask:
    """Whether a rank has another share: another place on a field, or one out of another number of them."""
    if any(getattr(a.layout, size) != getattr(b.layout, size) for size in sizes.values()):
        return np.ones(len(ranks.ranks), dtype=np.bool_)
    return ranks.changed(*sizes)


def _group_changes(a: GTPParallelLayout, b: GTPParallelLayout) -> tuple[GroupChange, ...]:
    changes = []
    for kind, (view, axes, _) in KINDS.items():
        of_a, of_b = (getattr(layout, view).groups(axes) for layout in (a, b))
        if max(of_a.shape[1], of_b.shape[1]) == 1:
            continue
        old, new = ({*map(tuple, rows.tolist())} if rows.shape[1] > 1 else set() for rows in (of_a, of_b))
        changes.append(
            GroupChange(
                kind=kind,
                num_a=len(old),
                num_b=len(new),
                size_a=of_a.shape[1],
                size_b=of_b.shape[1],
                disappear=tuple(sorted(old - new)),
                appear=tuple(sorted(new - old)),
            )
        )
    return tuple(changes)


def _link_changes(a: Job, b: Job) -> tuple[LinkChange, ...]:
    of_a, of_b = ({(c.level, c.group): c for c in _crossings(job)} for job in (a, b))
    levels = {level for level, _ in of_a} & {level for level, _ in of_b}
    return tuple(
        _link_change(of_a.get(key), of_b.get(key))
        for key in dict.fromkeys((*of_a, *of_b))
        if key[0] in levels
    )


def _crossings(job: Job) -> tuple[Crossing, ...]:
    return crossings(job.layout, job.topology, job.records or None)


def _link_change(a: Crossing | None, b: Crossing | None) -> LinkChange:
    """Groups of one rank are no kind of group in ``crossings``; they send nothing."""
    known = a or b
    assert known is not None
    return LinkChange(
        level=known.level,
        group=known.group,
        crossing_a=a.num_crossing if a else 0,
        num_a=a.num_groups if a else 0,
        crossing_b=b.num_crossing if b else 0,
        num_b=b.num_groups if b else 0,
        rank_bytes_a=a.rank_bytes if a else 0,
        rank_bytes_b=b.rank_bytes if b else 0,
        link_bytes_a=a.link_bytes if a else 0,
        link_bytes_b=b.link_bytes if b else 0,
    )


def _rows_per_lane(job: Job) -> int | None:
    return None if job.batch is None else job.batch.rows_per_lane


def _reshape_wrong(layout: GTPParallelLayout) -> int:
    return len(compare_driver(Driver.parse(PLAIN_RESHAPE, layout), layout).wrong_ranks)


def comparison_object(comparison: Comparison) -> dict[str, object]:
    """The comparison as JSON-ready dicts and lists. Ranks and groups that stay as they are, are left out."""
    masks = {
        "rows": comparison.other_rows,
        "tokens": comparison.other_tokens,
        "weights": comparison.other_shard,
    }
    return {
        "a": comparison.a.title,
        "b": comparison.b.title,
        "verdict": comparison.verdict,
        "sizes": {row.name: _pair(row.a, row.b) for row in comparison.sizes},
        "settings": {
            row.name: {**_pair(row.a, row.b), "source_a": row.source_a, "source_b": row.source_b}
            for row in comparison.settings
        },
        "ranks_in_both": len(comparison.ranks.ranks),
        "ranks_only_in": _pair(comparison.only_a, comparison.only_b),
        "changed": comparison.ranks.counts | {name: int(mask.sum()) for name, mask in masks.items()},
        "ranks": _rank_objects(comparison.ranks),
        "groups": {change.kind: _group_object(change) for change in comparison.groups},
        "links": [_link_object(link) for link in comparison.links],
        "rows_per_lane": _pair(*comparison.rows_per_lane),
        "parameter_bytes": _pair(*comparison.parameter_bytes),
        "ranks_misplaced_by_plain_reshape": _pair(*comparison.reshape_wrong),
        "notes": list(comparison.notes),
    }


def _pair(a: object, b: object) -> dict[str, object]:
    return {"a": a, "b": b}


def _rank_objects(ranks: RankChanges) -> list[dict[str, object]]:
    return [
        {"rank": int(ranks.ranks[i])}
        | {name: _pair(int(ranks.a[name][i]), int(ranks.b[name][i])) for name in FIELDS}
        for i in np.flatnonzero(ranks.changed(*FIELDS))
    ]


def _group_object(change: GroupChange) -> dict[str, object]:
    return {
        "number": _pair(change.num_a, change.num_b),
        "size": _pair(change.size_a, change.size_b),
        "disappear": [list(group) for group in change.disappear],
        "appear": [list(group) for group in change.appear],
    }


def _link_object(link: LinkChange) -> dict[str, object]:
    return {
        "level": link.level,
        "group": link.group,
        "crossing": _pair(link.crossing_a, link.crossing_b),
        "groups": _pair(link.num_a, link.num_b),
        "rank_bytes": _pair(link.rank_bytes_a, link.rank_bytes_b),
        "link_bytes": _pair(link.link_bytes_a, link.link_bytes_b),
    }
