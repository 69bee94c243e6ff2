"""A layout as tables for the terminal, 80 columns wide. Big worlds are cut short, and the tables say so."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankloom.explain.derivations import SettingRow, setting_rows, size_rows
from rankloom.explain.terminal_style import columns_width, fit, print_table, some_ranks, table, terminal
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.axes import IntArray
from rankloom.layout.provenance import dotted
from rankloom.layout.report import rank_rows
from rankloom.layout.topology import UNKNOWN

__all__ = ["groups_table", "print_layout", "print_ranks", "print_settings", "ranks_table", "sizes_table"]

MAX_RANKS = 64
MAX_GROUPS = 8  # of each kind
GROUP_LINES = 2
GROUPS = (
    ("both", "tp"),
    ("weights", "gtp_remat"),
    ("weights", "tp_gtp_remat"),
    ("weights", "replica"),
    ("tokens", "context"),
    ("tokens", "batch"),
    ("tokens", "lane"),
    ("both", "pp"),
)


def print_layout(
    layout: GTPParallelLayout,
    *,
    sources: Mapping[str, str],
    topology: Topology,
    console: Console | None = None,
) -> None:
    """Print settings with their sources, derived sizes with their arithmetic, groups, ranks and warnings."""
    console = console or terminal()
    print_settings(setting_rows(layout, sources=sources, spelled={}), console=console)
    print_table(console, "Sizes", sizes_table(layout))
    print_table(console, "Groups", groups_table(layout, width=console.width))
    print_ranks(layout, topology=topology, console=console)
    for warning in topology.warnings(layout):
        console.print(Text.assemble(("warning:", "yellow"), " ", warning))


def print_settings(rows: tuple[SettingRow, ...], *, console: Console) -> None:
    """Settings, values and sources; below each its name in the job's own program, where that has one."""
    names = max(len(row.key) for row in rows)
    values = max(len(row.value) for row in (*rows, SettingRow("", "", "value", "")))
    console.print(Text("Settings", style="bold"))
    console.print(Text(f" {'setting':{names}}  {'value':>{values}}  source", style="dim"))
    for row in rows:
        console.print(Text(f" {row.key:{names}}  {row.value:>{values}}  {row.source}".rstrip()))
        if row.spelled not in ("", dotted(row.key)):
            console.print(Text(f"   {row.spelled}", style="dim"))
    console.print()


def sizes_table(layout: GTPParallelLayout) -> Table:
    """The sizes that follow from the settings, with their arithmetic."""
    made = table("size", "value", "how", numbers=("value",), fixed=("size",))
    for row in size_rows(layout):
        made.add_row(row.name, str(row.value), row.brief)
    return made


def groups_table(layout: GTPParallelLayout, *, width: int) -> Table:
    """The groups of both views, as many of each kind as fit two lines of ``width`` columns."""
    kinds = [
        (view, axes, (layout.tokens if view == "tokens" else layout.weights).groups(axes))
        for view, axes in GROUPS
    ]
    headings = ("view", "axes", "number x ranks")
    rows = [(view, axes, f"{groups.shape[0]} x {groups.shape[1]}") for view, axes, groups in kinds]
    left = width - 1 - columns_width(headings, rows)
    made = table(*headings, "ranks", fixed=(*headings, "ranks"))
    for texts, (_, _, groups) in zip(rows, kinds, strict=True):
        made.add_row(*texts, _some_groups(groups, width=left))
    return made


def ranks_table(layout: GTPParallelLayout, *, topology: Topology) -> Table:
    """A row a rank, of the first ranks: coordinates, indices in both views, NVLink domain, node if known."""
    rows = rank_rows(layout, topology=topology, limit=MAX_RANKS)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if topology.gpus_per_node is not None:
        columns["node"] = [None if at == UNKNOWN else at for at in topology.nodes[:MAX_RANKS].tolist()]
    headings = [name.replace("_", "\n") for name in columns]
    made = table(*headings, numbers=headings)
    for values in zip(*columns.values(), strict=True):
        made.add_row(*("?" if value is None else str(value) for value in values))
    return made


def print_ranks(layout: GTPParallelLayout, *, topology: Topology, console: Console) -> None:
    """The table of the ranks, with a caption that says how many are left out."""
    cut = layout.world_size > MAX_RANKS
    shown = f"the first {MAX_RANKS} of {layout.world_size} ranks; rankloom layout --json prints all"
    print_table(console, "Ranks", ranks_table(layout, topology=topology), caption=shown * cut)


def _some_groups(groups: IntArray, *, width: int) -> str:
    room = width - len(f"  and {len(groups)} more") if len(groups) > 1 else width
    return fit(
        len(groups),
        lambda row: some_ranks(groups[row].tolist(), width=room),
        width=width,
        num_lines=GROUP_LINES,
        limit=MAX_GROUPS,
    )
