"""Where each rank stands, in both views and on the machines, as plain data for a page.

Arrays have an entry a rank, in rank order; an array whose entries are all equal is that one number.
"""

from __future__ import annotations

import numpy as np

from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import UNKNOWN

__all__ = ["KINDS", "blocks", "coordinates", "groups", "packed"]

# Kind of group -> (view that lists it, axes, views whose map shows it).
KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tp": ("weights", "tp", ("weights", "tokens")),
    "gtp_remat": ("weights", "gtp_remat", ("weights",)),
    "tp_gtp_remat": ("weights", "tp_gtp_remat", ("weights",)),
    "replica": ("weights", "replica", ("weights",)),
    "context": ("tokens", "context", ("tokens",)),
    "batch": ("tokens", "batch", ("tokens",)),
    "lane": ("tokens", "lane", ("tokens",)),
    "pp": ("weights", "pp", ("weights", "tokens")),
    "gtp_remat_replica": ("weights", "gtp_remat_replica", ()),
}
LARGEST_BOX = 256  # ranks; a larger domain without nodes is shown in parts
PART = 64

Packed = int | list[int]


def packed(values: IntArray) -> Packed:
    """The values as a list, or as one number if they are all the same."""
    return int(values[0]) if (values == values[0]).all() else values.tolist()


def coordinates(layout: GTPParallelLayout, topology: Topology) -> dict[str, Packed]:
    """Coordinates and indices of all ranks, with domain and node (-1 where not known)."""
    arrays = layout.coord_arrays() | {"domain": topology.domains, "node": topology.nodes}
    return {name: packed(values) for name, values in arrays.items()}


def groups(layout: GTPParallelLayout) -> dict[str, dict[str, object]]:
    """For each kind of group: its size, their number, and the group of every rank (``of``)."""
    return {kind: _groups(layout, view, axes, maps=maps) for kind, (view, axes, maps) in KINDS.items()}


def _groups(layout: GTPParallelLayout, view: str, axes: str, *, maps: tuple[str, ...]) -> dict[str, object]:
    rows = (layout.weights if view == "weights" else layout.tokens).groups(axes)
    of_rank = np.empty(layout.world_size, dtype=np.int64)
    of_rank[rows - layout.rank_offset] = np.arange(len(rows))[:, None]
    return {"size": rows.shape[1], "number": rows.shape[0], "maps": list(maps), "of": packed(of_rank)}


def blocks(topology: Topology) -> list[dict[str, object]]:
    """The boxes of a map, in the order of their first ranks: a domain each, or a part of a very large one.

    A box: ``label`` ("NVLink domain 3"), ``domain``, and ``nodes``, a list of [node or -1, runs]; a run is
    [first rank, how many], and the ranks of a box are those of all its runs.
    """
    return [
        _box(topology, part, num_parts=len(parts))
        for domain in _in_order(topology.domains)
        for parts in [_parts(topology, np.flatnonzero(topology.domains == domain))]
        for part in parts
    ]


def _in_order(places: IntArray) -> list[int]:
    found, first = np.unique(places, return_index=True)
    return [int(place) for place in found[np.argsort(first)]]


def _parts(topology: Topology, at: IntArray) -> list[IntArray]:
    if len(at) <= LARGEST_BOX:
        return [at]
    return [at[start : start + PART] for start in range(0, len(at), PART)]


def _box(topology: Topology, at: IntArray, *, num_parts: int) -> dict[str, object]:
    domain = int(topology.domains[at[0]])
    first = topology.first_rank
    label = "Domain not known" if domain == UNKNOWN else f"NVLink domain {domain}"
    if num_parts > 1:
        label += f", ranks {first + at[0]} to {first + at[-1]}"
    nodes = topology.nodes[at]
    return {
        "label": label,
        "domain": domain,
        "nodes": [[node, _runs(at[nodes == node] + first)] for node in _in_order(nodes)],
    }


def _runs(ranks: IntArray) -> list[list[int]]:
    """Ascending ranks as [first, how many] of each unbroken run."""
    pieces = np.split(ranks, np.flatnonzero(np.diff(ranks) != 1) + 1)
    return [[int(piece[0]), len(piece)] for piece in pieces]
