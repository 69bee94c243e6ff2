"""Where ranks stand: NVLink domains and nodes, and the groups that leave one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rankloom.errors import UserError
from rankloom.layout.axes import IntArray
from rankloom.layout.gtp import GTPParallelLayout
from rankloom.layout.words import ranks_text

__all__ = ["DEFAULT_NVLINK_DOMAIN_SIZE", "UNKNOWN", "Level", "Topology"]

DEFAULT_NVLINK_DOMAIN_SIZE = 8
UNKNOWN = -1
Level = Literal["domain", "node"]
LEVEL_WORDS: dict[Level, str] = {"domain": "NVLink domain", "node": "node"}


@dataclass(frozen=True, eq=False)
class Topology:
    """The NVLink domain and the node of every rank; ``UNKNOWN`` where nobody said.

    ``domains`` and ``nodes``: int64 [world_size], entry i for global rank ``first_rank`` + i.
    ``nvlink_domain_size`` is None where the domains were listed.
    """

    first_rank: int
    domains: IntArray
    nodes: IntArray
    nvlink_domain_size: int | None
    gpus_per_node: int | None

    @classmethod
    def regular(
        cls,
        layout: GTPParallelLayout,
        *,
        nvlink_domain_size: int = DEFAULT_NVLINK_DOMAIN_SIZE,
        gpus_per_node: int | None = None,
    ) -> Topology:
        """Consecutive ranks fill domains of ``nvlink_domain_size`` and, where that is known, nodes.

        Domain d holds the global ranks d * size to d * size + size - 1, also for a layout that starts later.
        """
        ranks = _ranks(layout)
        return cls(
            first_rank=layout.rank_offset,
            domains=_consecutive(ranks, _positive("nvlink_domain_size", nvlink_domain_size)),
            nodes=_nodes(ranks, gpus_per_node),
            nvlink_domain_size=nvlink_domain_size,
            gpus_per_node=gpus_per_node,
        )

    @classmethod
    def listed(
        cls,
        layout: GTPParallelLayout,
        domains: Sequence[Iterable[int]],
        *,
        gpus_per_node: int | None = None,
    ) -> Topology:
        """The ranks of each domain as listed; a rank in no list stands in an unknown domain.

        Raises UserError for a rank listed twice or outside the layout.
        """
        ranks = _ranks(layout)
        of_rank: dict[int, int] = {}
        for domain, members in enumerate(domains):
            for rank in members:
                if rank in of_rank:
                    twice = dict.fromkeys((of_rank[rank], domain))
                    places = " and ".join(map(str, twice))
                    raise UserError(f"nvlink_domains lists rank {rank} twice (domain {places})")
                if rank not in layout.ranks:
                    first, last = layout.ranks.start, layout.ranks.stop - 1
                    raise UserError(
                        f"nvlink_domains lists rank {rank}, and the layout holds ranks {first} to {last}"
                    )
                of_rank[rank] = domain
        placed = [of_rank.get(rank, UNKNOWN) for rank in ranks.tolist()]
        return cls(
            first_rank=layout.rank_offset,
            domains=np.array(placed, dtype=np.int64),
            nodes=_nodes(ranks, gpus_per_node),
            nvlink_domain_size=None,
            gpus_per_node=gpus_per_node,
        )

    def places(self, level: Level = "domain") -> IntArray:
        """The domain, or the node, of every rank: [world_size]."""
        return self.domains if level == "domain" else self.nodes

    def of(self, ranks: IntArray, *, level: Level = "domain") -> IntArray:
        """The domain, or the node, of these global ranks; same shape."""
        return self.places(level)[ranks - self.first_rank]

    def crossing(self, groups: IntArray, *, level: Level = "domain") -> IntArray:
        """The row numbers of the groups that are known to reach into more than one domain (or node).

        ``groups``: [number of groups, ranks in a group], as a view of the layout lists them.
        """
        places = self.of(groups, level=level)
        highest = places.max(axis=1)
        lowest = np.where(places == UNKNOWN, highest[:, None], places).min(axis=1)
        return np.flatnonzero(lowest != highest)

    def unknown(self, groups: IntArray, *, level: Level = "domain") -> IntArray:
        """The row numbers of the groups with a rank whose domain (or node) is not known."""
        return np.flatnonzero((self.of(groups, level=level) == UNKNOWN).any(axis=1))

    def warnings(self, layout: GTPParallelLayout) -> list[str]:
        """What to know about weight groups that cross NVLink domains: at most one line, empty if none does.

        Tensor-parallel traffic and the gathering of weights happen inside every layer, so these groups want
        NVLink. Context and replica groups are expected to span domains.
        """
        for axes, words in (("tp", "tp"), ("tp_gtp_remat", "tp x gtp_remat")):
            groups = layout.weights.groups(axes)
            crossing = self.crossing(groups)
            if crossing.size:
                return [self._warning(words, groups, crossing)]
        return []

    def _warning(self, words: str, groups: IntArray, crossing: IntArray) -> str:
        first, size, domain_size = groups[crossing[0]], groups.shape[1], self.nvlink_domain_size
        if domain_size is None:
            why = f"groups of {size} ranks are not lined up with the domains listed"
        elif size > domain_size:
            why = f"{size} ranks are more than a domain of {domain_size}"
        else:
            why = f"groups of {size} ranks are not lined up with domains of {domain_size}"
        return (
            f"{crossing.size} of {len(groups)} {words} groups cross NVLink domains ({why}):"
            f" for example ranks {ranks_text(first.tolist())}"
        )


def _ranks(layout: GTPParallelLayout) -> IntArray:
    return np.arange(layout.ranks.start, layout.ranks.stop, dtype=np.int64)


def _nodes(ranks: IntArray, gpus_per_node: int | None) -> IntArray:
    if gpus_per_node is None:
        return np.full_like(ranks, UNKNOWN)
    return _consecutive(ranks, _positive("gpus_per_node", gpus_per_node))


def _consecutive(ranks: IntArray, size: int) -> IntArray:
    """The place of each rank where consecutive ranks fill places of ``size``, which may be any integer."""
    return ranks // min(size, int(ranks[-1]) + 1)


def _positive(setting: str, size: int) -> int:
    if size < 1:
        raise UserError(f"{setting} must be at least 1, not {size}")
    return size
