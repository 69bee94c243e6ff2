"""On which nodes the ranks are to run: filled domain by domain, so that groups that talk a lot stay inside.

A *seat* is room for one rank on a node; seat i is rank i's, up to the order of devices inside a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankloom.driver.nodes import Device, Node
from rankloom.layout import GTPParallelLayout, choose_nodes
from rankloom.layout.node_choice import natural_order

__all__ = ["choose_seats", "tile_span"]


@dataclass(frozen=True)
class _Island:
    """Nodes of one known domain, or one node of which no domain is known: a seat each rank they can hold."""

    seats: tuple[Node, ...]


def tile_span(layout: GTPParallelLayout) -> int:
    """How many consecutive ranks hold a whole TP x GTP_remat group: W, or more where CP is numbered
    between."""
    groups = layout.weights.groups("tp_gtp_remat")
    return int((groups.max(axis=1) - groups.min(axis=1)).max()) + 1


def choose_seats(
    nodes: Sequence[Node],
    domain_of: Mapping[str, str | None],
    layout: GTPParallelLayout,
    *,
    device: Device,
    nodes_per_segment: int | None = None,
) -> tuple[Node, ...]:
    """The node of every rank. ``domain_of``: node id -> NVLink domain, None where it is not known.

    Known domains come first, in the order of the numbers in their names, and so do the nodes in them. The
    smallest domain that holds all ranks is taken; else each one is filled with whole tiles, and what is left
    over comes last. ``nodes_per_segment``: take only whole segments of so many nodes of one known domain.
    The nodes have room for all ranks (:func:`refuse_shortage`). Raises UserError where segments are asked for
    and there are not enough nodes of known domain.
    """
    if nodes_per_segment is not None:
        nodes = _nodes_of_segments(
            nodes, domain_of, layout, device=device, nodes_per_segment=nodes_per_segment
        )
    islands = _islands(nodes, domain_of, device=device)
    needed = layout.world_size
    whole = [island for island in islands if len(island.seats) >= needed]
    if whole:
        return min(whole, key=lambda island: len(island.seats)).seats[:needed]
    tile = tile_span(layout)
    cuts = [len(island.seats) // tile * tile for island in islands]
    aligned = [seat for island, cut in zip(islands, cuts, strict=True) for seat in island.seats[:cut]]
    left_over = [seat for island, cut in zip(islands, cuts, strict=True) for seat in island.seats[cut:]]
    seats = (*aligned, *left_over)[:needed]
    assert len(seats) == needed
    return seats


def _islands(nodes: Sequence[Node], domain_of: Mapping[str, str | None], *, device: Device) -> list[_Island]:
    known: dict[str, list[Node]] = {}
    alone: list[_Island] = []
    for node in sorted(nodes, key=lambda node: natural_order(node.name)):
        seats = [node] * node.room(device)
        domain = domain_of.get(node.node_id)
        if domain is None:
            alone.append(_Island(tuple(seats)))
        else:
            known.setdefault(domain, []).extend(seats)
    return [*(_Island(tuple(known[domain])) for domain in sorted(known, key=natural_order)), *alone]


def _nodes_of_segments(
    nodes: Sequence[Node],
    domain_of: Mapping[str, str | None],
    layout: GTPParallelLayout,
    *,
    device: Device,
    nodes_per_segment: int,
) -> list[Node]:
    offering = [node for node in nodes if node.room(device)]
    named = {_unique_name(node, offering): node for node in offering}
    per_node = min(node.room(device) for node in offering)
    segments = choose_nodes(
        {name: domain_of.get(node.node_id) for name, node in named.items()},
        nodes_per_segment=nodes_per_segment,
        num_segments=-(-layout.world_size // (nodes_per_segment * per_node)),
    )
    return [named[name] for segment in segments for name in segment]


def _unique_name(node: Node, others: Sequence[Node]) -> str:
    """Several nodes of a machine have one name."""
    alike = sum(other.name == node.name for other in others)
    return node.name if alike == 1 else f"{node.name} {node.node_id[:8]}"
