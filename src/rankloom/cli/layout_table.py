"""A layout as tables for the terminal. Big worlds are cut short, and the tables say so."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankloom.layout import GTPParallelLayout
from rankloom.layout.axes import IntArray
from rankloom.layout.provenance import dotted
from rankloom.layout.report import rank_rows
from rankloom.layout.topology import Topology
from rankloom.layout.words import ranks_text

MAX_RANKS = 64
MAX_GROUPS = 8
NARROWEST = 100  # columns, where the output is no terminal

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


def print_layout(layout: GTPParallelLayout, *, sources: Mapping[str, str], topology: Topology) -> None:
    """Print settings with their sources, derived sizes with their arithmetic, groups, ranks and warnings."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, NARROWEST))
    tables = (
        settings_table(layout, sources=sources),
        sizes_table(layout),
        groups_table(layout),
        ranks_table(layout, topology=topology),
    )
    for table in tables:
        console.print(table)
        console.print()
    for warning in topology.warnings(layout):
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def settings_table(layout: GTPParallelLayout, *, sources: Mapping[str, str]) -> Table:
    """The settings of the layout and where each value came from."""
    table = _table("Settings", "setting", "value", "source")
    for name in (
        "world_size",
        "tensor_model_parallel_size",
        "sequence_parallel",
        "tensor_parallel_num_weight_shards",
        "tensor_parallel_num_sequence_shards",
        "context_parallel_size",
        "pipeline_model_parallel_size",
        "rank_order",
    ):
        value = getattr(layout, name)
        table.add_row(name, str(value).lower(), sources.get(dotted(name), ""))
    return table


def sizes_table(layout: GTPParallelLayout) -> Table:
    """The sizes that follow from the settings, with their arithmetic."""
    tp, pp, cp = (
        layout.tensor_model_parallel_size,
        layout.pipeline_model_parallel_size,
        layout.context_parallel_size,
    )
    remat, sequence, batch = (
        layout.gtp_remat_size,
        layout.gtp_remat_num_sequence_shards,
        layout.gtp_remat_num_batch_shards,
    )
    degree = layout.tensor_parallel_num_sequence_shards // sequence
    dp = layout.data_parallel_size
    rows = (
        ("gtp_remat_size", f"{layout.tensor_parallel_num_weight_shards} / TP {tp}"),
        (
            "gtp_remat_num_sequence_shards",
            f"{layout.tensor_parallel_num_sequence_shards} / SP degree {degree}",
        ),
        ("gtp_remat_num_batch_shards", f"{remat} / {sequence}"),
        ("data_parallel_size", f"{layout.world_size} / (TP {tp} x PP {pp} x CP {cp} x GTP_remat {remat})"),
        ("batch_parallel_size", f"data_parallel {dp} x {batch}: the number of lanes"),
        ("runtime_context_parallel_size", f"CP {cp} x {sequence}: the ranks attention talks to"),
        ("num_weight_replicas", f"data_parallel {dp} x CP {cp}: the copies of a weight shard"),
    )
    table = _table("Sizes", "size", "value", "how")
    for name, how in rows:
        table.add_row(name, str(getattr(layout, name)), how)
    return table


def groups_table(layout: GTPParallelLayout) -> Table:
    """The groups of both views, the first few of each kind."""
    table = _table("Groups", "view", "axes", "number x ranks", "ranks")
    for view, axes in GROUPS:
        groups = (layout.tokens if view == "tokens" else layout.weights).groups(axes)
        table.add_row(view, axes, f"{groups.shape[0]} x {groups.shape[1]}", _some_groups(groups))
    return table


def ranks_table(layout: GTPParallelLayout, *, topology: Topology) -> Table:
    """A row a rank: coordinates, indices in both views, NVLink domain."""
    rows = rank_rows(layout, topology=topology, limit=MAX_RANKS)
    table = _table("Ranks", *(name.replace("_", "\n") for name in rows[0]), numbers=True)
    for row in rows:
        table.add_row(*("?" if value is None else str(value) for value in row.values()))
    if layout.world_size > MAX_RANKS:
        table.caption = f"the first {MAX_RANKS} of {layout.world_size} ranks; --json prints all"
    return table


def _table(title: str, *headings: str, numbers: bool = False) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left", box=None)
    for heading in headings:
        right = numbers or heading == "value"
        table.add_column(heading, justify="right" if right else "left", header_style="dim")
    return table


def _some_groups(groups: IntArray) -> str:
    shown = "  ".join(ranks_text(row) for row in groups[:MAX_GROUPS].tolist())
    left_out = len(groups) - MAX_GROUPS
    return f"{shown}  and {left_out} more" if left_out > 0 else shown
