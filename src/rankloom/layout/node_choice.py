"""Choosing nodes for segments that each have to stand in one NVLink domain."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankloom.errors import UserError

__all__ = ["choose_nodes", "natural_order"]

MAX_NODES_SHOWN = 4


def choose_nodes(
    domain_of_node: Mapping[str, str | None], *, nodes_per_segment: int, num_segments: int = 1
) -> list[tuple[str, ...]]:
    """The nodes of each segment, every segment inside one known domain.

    Domains and nodes are taken in the order of the numbers in their names (node2 before node10). A node whose
    domain is None is never taken. Raises UserError where there are not enough nodes of known domain, with
    what is known of each.

    >>> choose_nodes({"n1": "A", "n2": None, "n3": "A"}, nodes_per_segment=2)
    [('n1', 'n3')]
    """
    for name, number in (("nodes_per_segment", nodes_per_segment), ("num_segments", num_segments)):
        if number < 1:
            raise UserError(f"{name} must be at least 1, not {number}")
    domains: dict[str, list[str]] = {}
    for node in sorted(domain_of_node, key=natural_order):
        domain = domain_of_node[node]
        if domain is not None:
            domains.setdefault(domain, []).append(node)
    segments = [
        tuple(domains[domain][start : start + nodes_per_segment])
        for domain in sorted(domains, key=natural_order)
        for start in range(0, len(domains[domain]) - nodes_per_segment + 1, nodes_per_segment)
    ]
    if len(segments) < num_segments:
        unknown = [node for node in sorted(domain_of_node, key=natural_order) if domain_of_node[node] is None]
        wanted = _wanted(nodes_per_segment, num_segments)
        sizes = [len(nodes) for nodes in domains.values()]
        smaller = [n for n in range(1, nodes_per_segment) if sum(size // n for size in sizes) >= num_segments]
        tries = [f"nodes_per_segment {max(smaller)}"] if smaller else []
        tries += [f"num_segments {len(segments)}"] if segments else []
        raise UserError(f"{wanted}, {_known(domains, len(segments))}{_remedy(unknown, tries)}")
    return segments[:num_segments]


def _wanted(nodes_per_segment: int, num_segments: int) -> str:
    nodes = f"{nodes_per_segment} node{'s' * (nodes_per_segment != 1)}"
    if num_segments == 1:
        return f"a segment of {nodes} needs them in one NVLink domain"
    return f"{num_segments} segments of {nodes} need each its nodes in one NVLink domain"


def _known(domains: Mapping[str, list[str]], num_possible: int) -> str:
    if not domains:
        return "and no node's domain is known"
    counts = ", ".join(f"{domain}: {len(domains[domain])}" for domain in sorted(domains, key=natural_order))
    return f"and the nodes of known domains ({counts}) make {num_possible}"


def _remedy(unknown: list[str], tries: list[str]) -> str:
    text = ""
    if unknown:
        shown = ", ".join(unknown[:MAX_NODES_SHOWN]) + ", ..." * (len(unknown) > MAX_NODES_SHOWN)
        number, them = (f"{len(unknown)} nodes", "them") if len(unknown) > 1 else ("1 node", "it")
        text = (
            f"; the domain of {number} is unknown ({shown}): it was not probed or labelled;"
            f" probe or label {them}"
        )
    if tries:
        text += f"{', or' if unknown else ';'} try {' or '.join(tries)}"
    return text


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key: numbers in a name count as numbers. Texts and numbers take turns, so they never meet."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name
