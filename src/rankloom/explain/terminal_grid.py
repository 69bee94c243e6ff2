"""The ranks where they stand: a line a domain, a coloured number a rank; of big worlds only the domains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.text import Text

from rankloom.explain.terminal_style import colour, indented, print_table, some_ranks, table
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import UNKNOWN

__all__ = ["LARGEST_GRID", "MAX_DOMAINS", "print_grids"]

LARGEST_GRID = 128  # ranks
MAX_DOMAINS = 32  # lines of a table of domains
MOST_CELLS = 16  # of a line


@dataclass(frozen=True, eq=False)
class View:
    """What the cells of a grid say: named numbers of each rank, those left out of which there is only one.

    ``colours``: the number that picks the colour, called ``coloured_by``.
    """

    title: str
    alike: str
    parts: dict[str, IntArray]
    coloured_by: str
    colours: IntArray

    @property
    def cells(self) -> list[str]:
        columns = [values.tolist() for values in self.parts.values()]
        return [".".join(map(str, numbers)) for numbers in zip(*columns, strict=True)]

    @property
    def legend(self) -> str:
        """What a cell says."""
        if not self.parts:
            return self.alike
        return f"Each cell is a rank's {'.'.join(self.parts)}; colours go by {self.coloured_by}."


def print_grids(layout: GTPParallelLayout, *, topology: Topology, console: Console) -> None:
    """Both views of the ranks, or a table of the domains where the ranks are more than ``LARGEST_GRID``."""
    if layout.world_size > LARGEST_GRID:
        _print_domains(layout, topology=topology, console=console)
        return
    for view in (_tokens(layout), _weights(layout)):
        console.print(Text(view.title, style="bold"))
        indented(console, view.legend)
        if view.parts:
            _print_grid(view, topology=topology, console=console)
        console.print()


def _tokens(layout: GTPParallelLayout) -> View:
    parts = _parts(layout, {"stage": "pp", "lane": "lane", "context": "context"})
    by = next((name for name in ("lane", "context", "stage") if name in parts), "")
    alike = "All ranks train on the same tokens."
    return View("Tokens", alike, parts, by, parts.get(by, np.zeros(0, dtype=np.int64)))


def _weights(layout: GTPParallelLayout) -> View:
    names = {"stage": "pp", "tp": "tp", "shard": "weight_shard", "replica": "replica"}
    parts = _parts(layout, names)
    if "tp" in parts and "shard" in parts:
        by, colours = "tp and shard", parts["tp"] * layout.gtp_remat_size + parts["shard"]
    else:
        by = next((name for name in ("shard", "tp", "replica", "stage") if name in parts), "")
        colours = parts.get(by, np.zeros(0, dtype=np.int64))
    return View("Weights", "Every rank holds all weights.", parts, by, colours)


def _parts(layout: GTPParallelLayout, names: dict[str, str]) -> dict[str, IntArray]:
    """The numbers that are not 0 on every rank."""
    arrays = layout.coord_arrays()
    return {shown: arrays[name] for shown, name in names.items() if arrays[name].any()}


def _print_grid(view: View, *, topology: Topology, console: Console) -> None:
    texts = view.cells
    cell = max(3, *(len(text) for text in texts)) + 2
    labels, runs = _Labels.of(topology), list(_runs(topology))
    per_line = _per_line(console.width - 1 - labels.width, cell, max(len(run) for _, run in runs))
    steps = "".join(f"{f'+{i}':>{cell - 1}} " for i in range(per_line))
    console.print(Text(f" {labels.heading}{steps}".rstrip(), style="dim"))
    above: tuple[int, int] | None = None
    for place, run in runs:
        for start in range(0, len(run), per_line):
            at = run[start : start + per_line]
            line = Text(" ")
            line.append(labels.line(place, at[0], repeated=place == above))
            for i in at:
                line.append(f"{texts[i]:>{cell - 1}} ", style=colour(int(view.colours[i])))
            console.print(line, no_wrap=True)
            above = place


@dataclass(frozen=True)
class _Labels:
    """The columns before the cells: domain, node where nodes are known, first rank of the line."""

    first_rank: int
    knows_nodes: bool
    ranks: int

    @classmethod
    def of(cls, topology: Topology) -> _Labels:
        last = topology.first_rank + len(topology.domains) - 1
        return cls(topology.first_rank, topology.gpus_per_node is not None, max(4, len(str(last))))

    @property
    def heading(self) -> str:
        return f"domain  {'node  ' * self.knows_nodes}{'rank':>{self.ranks}} "

    @property
    def width(self) -> int:
        return len(self.heading)

    def line(self, place: tuple[int, int], at: int, *, repeated: bool) -> str:
        domain, node = ("" if repeated else "?" if number == UNKNOWN else str(number) for number in place)
        node_text = f"{node:>4}  " if self.knows_nodes else ""
        return f"{domain:>6}  {node_text}{self.first_rank + at:>{self.ranks}} "


def _per_line(room: int, cell: int, longest: int) -> int:
    """All of the longest run if it fits, or the largest power of two that does."""
    fits = max(1, min(MOST_CELLS, room // cell))
    return longest if longest <= fits else 1 << (fits.bit_length() - 1)


def _runs(topology: Topology) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """(domain, node) and the places of the consecutive ranks there, domain after domain."""
    for domain in _in_order(topology.domains):
        members = np.flatnonzero(topology.domains == domain)
        nodes = topology.nodes[members]
        breaks = (np.diff(members) != 1) | (np.diff(nodes) != 0)
        for run in np.split(members, np.flatnonzero(breaks) + 1):
            yield (domain, int(topology.nodes[run[0]])), run.tolist()


def _in_order(places: IntArray) -> list[int]:
    found, first = np.unique(places, return_index=True)
    return [int(place) for place in found[np.argsort(first)]]


def _print_domains(layout: GTPParallelLayout, *, topology: Topology, console: Console) -> None:
    """Which lanes, context positions, shards and replicas the ranks of each domain have."""
    columns = _tokens(layout).parts | _weights(layout).parts
    domains = _in_order(topology.domains)
    shown = {domain: np.flatnonzero(topology.domains == domain) for domain in domains[:MAX_DOMAINS]}
    ranks = [some_ranks((at + topology.first_rank).tolist(), width=14) for at in shown.values()]
    knows_nodes = topology.gpus_per_node is not None
    taken = 8 + max(len(text) + 2 for text in ranks) + 8 * knows_nodes
    width = max(8, min(16, (console.width - 1 - taken) // max(1, len(columns)) - 2))
    headings = ["domain", *(["node"] if knows_nodes else []), "ranks", *columns]
    made = table(*headings, numbers=["domain"], fixed=headings)
    for (domain, at), rank_text in zip(shown.items(), ranks, strict=True):
        nodes = [_values(topology.nodes[at], width=6)] if knows_nodes else []
        values = [_values(numbers[at], width=width) for numbers in columns.values()]
        made.add_row("?" if domain == UNKNOWN else str(domain), *nodes, rank_text, *values)
    left_out = len(domains) - len(shown)
    more = f"; {left_out} of {len(domains)} domains are left out" if left_out else ""
    caption = (
        f"{layout.world_size} ranks are too many to show one by one: a line is an NVLink domain, with the"
        f" numbers that its ranks have{more}"
    )
    print_table(console, "NVLink domains", made, caption=caption)


def _values(numbers: IntArray, *, width: int) -> str:
    """The different numbers, or how many there are if they do not fit."""
    found = np.unique(numbers).tolist()
    if UNKNOWN in found:
        return "?"
    text = some_ranks(found, width=width)
    return text if len(text) <= width and not text.endswith("..") else f"{len(found)} values"
