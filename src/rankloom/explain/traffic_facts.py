"""Who talks to whom, for what and how much in a step: rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankloom.explain.weight_facts import NUMBER
from rankloom.layout import GTPParallelLayout
from rankloom.plan.collectives import EVERY_GROUP, CollectiveRecord
from rankloom.plan.links import most_sent

__all__ = ["Exchange", "GroupTraffic", "group_traffic"]


@dataclass(frozen=True)
class Exchange:
    """Collectives of one kind for one purpose; ``num_bytes``: what a rank sends in a step in all."""

    what: str
    kind: str
    count: int
    num_bytes: int


@dataclass(frozen=True)
class GroupTraffic:
    """The groups of one kind: how many, how large, what they exchange.

    ``num_bytes``: what a rank sends in a step in all; None where no records are known. With pipeline stages
    it and the exchanges are those of the stage that sends most.
    """

    group: str
    number: int
    size: int
    num_bytes: int | None
    exchanges: tuple[Exchange, ...]


def group_traffic(layout: GTPParallelLayout, records: Iterable[CollectiveRecord]) -> tuple[GroupTraffic, ...]:
    """A row for each kind of group with more than one rank, those that send most first."""
    records = tuple(records)
    rows = [
        _traffic(layout, name, [r for r in records if r.group == name] if records else None)
        for name in EVERY_GROUP
    ]
    talking = [row for row in rows if row.size > 1 and (row.exchanges or not records)]
    return tuple(sorted(talking, key=lambda row: -(row.num_bytes or 0)))


def _traffic(layout: GTPParallelLayout, name: str, records: list[CollectiveRecord] | None) -> GroupTraffic:
    view, axes = EVERY_GROUP[name]
    groups = (layout.weights if view == "weights" else layout.tokens).groups(axes)
    exchanges = _exchanges(_busiest(records or []))
    return GroupTraffic(
        group=name,
        number=groups.shape[0],
        size=groups.shape[1],
        num_bytes=None if records is None else sum(exchange.num_bytes for exchange in exchanges),
        exchanges=exchanges,
    )


def _busiest(records: list[CollectiveRecord]) -> list[CollectiveRecord]:
    """Those of the pipeline stage whose ranks send most, the first of equals."""
    stages = sorted({record.stage for record in records if record.stage is not None})
    chosen = max(stages, key=lambda at: most_sent([r for r in records if r.stage == at]), default=None)
    return [record for record in records if record.stage in (None, chosen)]


def _exchanges(records: list[CollectiveRecord]) -> tuple[Exchange, ...]:
    """The layers' equal collectives taken together, those with most bytes first."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for r in records:
        key = NUMBER.sub(".*", r.what), r.kind
        count, num_bytes = sums.get(key, (0, 0))
        sums[key] = count + r.count, num_bytes + r.count * r.bytes_sent
    rows = [Exchange(*key, *values) for key, values in sums.items()]
    return tuple(sorted(rows, key=lambda row: -row.num_bytes))
