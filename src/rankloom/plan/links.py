"""Which groups reach out of an NVLink domain or a node, and how many bytes of a step leave one.

A collective runs as a ring over the ranks of its group in ascending order, the last one closing it: what a
rank sends goes over the edge to the next rank, so every edge that leaves a domain carries ``bytes_sent``. A
broadcast goes along the chain from the first rank to the last, and each edge carries the payload, which is
``bytes_sent / (ranks - 1)``. A send goes straight from one pipeline stage to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import LEVEL_WORDS, UNKNOWN, Level
from rankloom.layout.words import stretches_text
from rankloom.plan.amounts import bytes_text
from rankloom.plan.collectives import EVERY_GROUP, CollectiveRecord

__all__ = ["Crossing", "crossings", "most_sent"]


@dataclass(frozen=True)
class Crossing:
    """One kind of group at one level of the topology.

    group         a key of ``EVERY_GROUP``
    num_crossing  groups known to reach into more than one domain (node), out of ``num_groups``
    num_unknown   groups with a rank whose domain (node) is not known
    example       ranks of the first crossing group; ``example_places`` the domains (nodes) it reaches into
    rank_bytes    most bytes that a rank sends for it in a step; None where no records are known
    link_bytes    most bytes that leave one domain (node) for all its groups together in a step; None likewise
    """

    level: Level
    group: str
    num_groups: int
    group_size: int
    num_crossing: int
    num_unknown: int
    example: tuple[int, ...]
    example_places: tuple[int, ...]
    rank_bytes: int | None
    link_bytes: int | None

    def describe(self) -> str:
        """One sentence: how many groups cross what, an example, and bytes where they are known."""
        place = LEVEL_WORDS[self.level]
        ranks = f"{self.group_size} rank{'s' * (self.group_size != 1)} each"
        if self.num_crossing:
            text = (
                f"{self.num_crossing} of {self.num_groups} {self.group} groups ({ranks}) cross {place}s:"
                f" ranks {stretches_text(self.example)} stand in {place}s {_listed(self.example_places)}"
            )
        else:
            known = self.num_groups - self.num_unknown
            which = f"all {known}" if not self.num_unknown else f"{known} of {self.num_groups}"
            text = f"{which} {self.group} groups ({ranks}) stay inside one {place}"
        if self.num_unknown:
            text += f"; of {self.num_unknown} the {place} of a rank is not known"
        if self.num_crossing and self.link_bytes is not None:
            text += f"; up to {bytes_text(self.link_bytes)} a step leave one {place}"
            text += f" ({bytes_text(self.rank_bytes or 0)} are sent by a rank)"
        return text


def crossings(
    layout: GTPParallelLayout, topology: Topology, records: Sequence[CollectiveRecord] | None = None
) -> tuple[Crossing, ...]:
    """All kinds of groups of more than one rank: for domains and, where nodes are known, for nodes.

    ``records``: the collectives of a step; without any, bytes are None.
    """
    levels: list[Level] = ["domain"]
    if (topology.nodes != UNKNOWN).any():
        levels.append("node")
    groups = {kind: getattr(layout, view).groups(axes) for kind, (view, axes) in EVERY_GROUP.items()}
    stages = layout.coord_arrays()["pp"]
    return tuple(
        _crossing(
            kind,
            rows,
            level=level,
            topology=topology,
            stages=stages[rows[:, 0] - layout.rank_offset],
            records=records or (),
        )
        for level in levels
        for kind, rows in groups.items()
        if rows.shape[1] > 1
    )


def _crossing(
    kind: str,
    rows: IntArray,
    *,
    level: Level,
    topology: Topology,
    stages: IntArray,
    records: Sequence[CollectiveRecord],
) -> Crossing:
    """``stages``: the pipeline stage of the first rank of every group."""
    crossing = topology.crossing(rows, level=level)
    example = rows[crossing[0]] if crossing.size else rows[:0].reshape(-1)
    reached = np.unique(topology.of(example, level=level))
    known = bool(records)
    own = [record for record in records if record.group == kind]
    return Crossing(
        level=level,
        group=kind,
        num_groups=len(rows),
        group_size=rows.shape[1],
        num_crossing=len(crossing),
        num_unknown=len(topology.unknown(rows, level=level)),
        example=tuple(example.tolist()),
        example_places=tuple(reached[reached != UNKNOWN].tolist()),
        rank_bytes=most_sent(own) if known else None,
        link_bytes=_link_bytes(topology.of(rows, level=level), stages, own) if known else None,
    )


def most_sent(records: Sequence[CollectiveRecord]) -> int:
    """Bytes that a rank sends in a step, in the pipeline stage where they are most."""
    of_all = sum(r.count * r.bytes_sent for r in records if r.stage is None)
    own = Counter[int]()
    for record in records:
        if record.stage is not None:
            own[record.stage] += record.count * record.bytes_sent
    return of_all + max(own.values(), default=0)


def _link_bytes(places: IntArray, stages: IntArray, records: Sequence[CollectiveRecord]) -> int:
    """Most bytes that leave one place. ``places``: of every rank of every group, [groups, ranks]; ``stages``
    of every group's first rank."""
    leaving = Counter[int]()
    for stage in dict.fromkeys(record.stage for record in records if record.kind != "send"):
        own = [record for record in records if record.stage == stage and record.kind != "send"]
        leaving.update(_ring_bytes(places if stage is None else places[stages == stage], own))
    for record in records:
        if record.kind == "send":  # a pipeline group lists its ranks by stage
            source, target = places[:, record.stage], places[:, record.to_stage]
            apart = source[(source != target) & (source != UNKNOWN) & (target != UNKNOWN)]
            for place, number in zip(*np.unique(apart, return_counts=True), strict=True):
                leaving[int(place)] += int(number) * record.count * record.bytes_sent
    return max(leaving.values(), default=0)


def _ring_bytes(places: IntArray, records: Sequence[CollectiveRecord]) -> dict[int, int]:
    """Bytes that leave each place in rings and chains."""
    following = np.roll(places, -1, axis=1)
    leaves = (places != following) & (places != UNKNOWN) & (following != UNKNOWN)
    if not leaves.any():
        return {}
    num_places = int(places.max()) + 1
    chain = np.bincount(places[:, :-1][leaves[:, :-1]], minlength=num_places)
    ring = np.bincount(places[leaves], minlength=num_places)
    around, along = 0, 0
    for record in records:
        if record.kind == "broadcast":
            along += record.count * record.bytes_sent // (places.shape[1] - 1)
        else:
            around += record.count * record.bytes_sent
    # Python's integers: bytes of a step can be more than 64 bits hold.
    edges: list[tuple[int, int]] = list(zip(ring.tolist(), chain.tolist(), strict=True))
    return {place: r * around + c * along for place, (r, c) in enumerate(edges)}


def _listed(places: Sequence[int], *, limit: int = 4) -> str:
    """ "0 and 1", "0, 1 and 2", or "0, 1, ... and 7"."""
    texts = [str(place) for place in places]
    if len(texts) > limit:
        texts = [*texts[: limit - 2], "...", texts[-1]]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
