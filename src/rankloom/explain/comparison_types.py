"""What differs between two jobs, as data. ``a`` is the first job, ``b`` the second, pairs are (a, b)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankloom.explain.comparison_words import verdict
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import UNKNOWN, Level
from rankloom.plan.job import Job

__all__ = ["FIELDS", "SHARD_FIELDS", "Comparison", "Difference", "GroupChange", "LinkChange", "RankChanges"]

FIELDS = ("lane", "context", "tp", "weight_shard", "replica", "pp", "domain", "node")
SHARD_FIELDS = ("tp", "weight_shard", "pp")

Mask = NDArray[np.bool_]
Group = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """A size or a setting that differs; None where a job does not have it. ``source_a``: "file", ..."""

    name: str
    a: int | str | None
    b: int | str | None
    source_a: str = ""
    source_b: str = ""


@dataclass(frozen=True, eq=False)
class RankChanges:
    """The ranks that are in both jobs, ascending, and the ``FIELDS`` of each in ``a`` and in ``b``.

    Domain and node are ``UNKNOWN`` (-1) where nobody knows them; that is no change.
    """

    ranks: IntArray
    a: Mapping[str, IntArray]
    b: Mapping[str, IntArray]

    def changed(self, *fields: str) -> Mask:
        """Whether a rank has another number in one of these fields: [ranks in both]."""
        changed = np.zeros(len(self.ranks), dtype=np.bool_)
        for name in fields:
            a, b = self.a[name], self.b[name]
            changed |= (a != b) & (a != UNKNOWN) & (b != UNKNOWN)
        return changed

    @property
    def counts(self) -> dict[str, int]:
        """How many ranks change lane, context, replica, shard (tp, weight_shard or pp), domain and node."""
        names = ("lane", "context", "replica", "domain", "node")
        counts = {name: int(self.changed(name).sum()) for name in names}
        return counts | {"shard": int(self.changed(*SHARD_FIELDS).sum())}


@dataclass(frozen=True)
class GroupChange:
    """The groups of one kind, those of one rank left out. Groups of the same ranks in both jobs stay."""

    kind: str
    num_a: int
    num_b: int
    size_a: int
    size_b: int
    disappear: tuple[Group, ...]
    appear: tuple[Group, ...]

    @property
    def differs(self) -> bool:
        return bool(self.disappear or self.appear)


@dataclass(frozen=True)
class LinkChange:
    """What one kind of group does at one level: ``crossing_a`` of ``num_a`` groups reach into more than one
    domain (node). Bytes of a step as in ``rankloom.plan.links``; None where they are not known."""

    level: Level
    group: str
    crossing_a: int
    num_a: int
    crossing_b: int
    num_b: int
    rank_bytes_a: int | None
    rank_bytes_b: int | None
    link_bytes_a: int | None
    link_bytes_b: int | None

    @property
    def differs(self) -> bool:
        """Whether another number of groups crosses, or other bytes do; unknown bytes are no difference."""
        return self.crossing_a != self.crossing_b or _differ(self.link_bytes_a, self.link_bytes_b)

    @property
    def differs_inside(self) -> bool:
        """Whether ranks send other bytes, over links or not."""
        return _differ(self.rank_bytes_a, self.rank_bytes_b)


def _differ(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two jobs side by side.

    sizes, settings  those that differ
    ranks            the ranks that are in both; ``only_a``, ``only_b``: how many are in one only
    other_rows       whether a rank of both trains on another share of the rows. A share is a lane out of so
                     many: lane 0 of 2 is not lane 0 of 4
    other_tokens     likewise, another part of its rows (a context position out of so many)
    other_shard      likewise, another slice of the weights (tp, weight shard and stage, out of so many each)
    groups           kinds of groups that have more than one rank in one of the jobs
    links            the same kinds at the levels (domain, node) that both jobs know
    rows_per_lane    rows that a lane takes in a step; None without a batch
    parameter_bytes  of the stored parameters of a rank; None without a model
    reshape_wrong    number of ranks that a plain reshape, pp,-1,runtime_cp,tp, puts in the wrong lane
    notes            further sentences, given by the caller
    """

    a: Job
    b: Job
    sizes: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    ranks: RankChanges
    only_a: int
    only_b: int
    other_rows: Mask
    other_tokens: Mask
    other_shard: Mask
    groups: tuple[GroupChange, ...]
    links: tuple[LinkChange, ...]
    rows_per_lane: tuple[int | None, int | None]
    parameter_bytes: tuple[int | None, int | None]
    reshape_wrong: tuple[int, int]
    notes: tuple[str, ...]

    @property
    def differing_ranks(self) -> IntArray:
        """The ranks of both jobs that have another number in one of the ``FIELDS``."""
        return self.ranks.ranks[self.ranks.changed(*FIELDS)]

    @property
    def verdict(self) -> str:
        """One paragraph in words: other data, other weights, memory, links; what matters first."""
        return verdict(self)
