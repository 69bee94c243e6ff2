"""A job in the terminal: what its page shows, as text that fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rankloom.explain.facts import reaches
from rankloom.explain.headline import headline
from rankloom.explain.job_settings import job_settings
from rankloom.explain.terminal_grid import print_grids
from rankloom.explain.terminal_layout import groups_table, print_ranks, print_settings, sizes_table
from rankloom.explain.terminal_style import indented, print_table
from rankloom.explain.terminal_tokens import print_batch, print_tokens
from rankloom.explain.terminal_traffic import (
    print_crossings,
    print_memory,
    print_parameters,
    print_traffic,
)
from rankloom.layout import compare_driver
from rankloom.plan.job import Job

if TYPE_CHECKING:
    from rankloom.plan.links import Crossing

__all__ = ["print_job"]


def print_job(job: Job, *, console: Console, crossings: Sequence[Crossing] = ()) -> None:
    """Everything known about a job. ``crossings``: what leaves domains and nodes, from ``plan.links``.

    Raises UserError for a call that names an axis its driver does not have.
    """
    console.print(Text(job.title, style="bold"))
    indented(console, headline(job.layout))
    console.print()
    print_settings(job_settings(job), console=console)
    print_table(console, "Sizes", sizes_table(job.layout))
    print_grids(job.layout, topology=job.topology, console=console)
    print_table(console, "Groups", groups_table(job.layout, width=console.width))
    print_ranks(job.layout, topology=job.topology, console=console)
    if job.batch is not None:
        print_batch(job.batch, console=console)
    print_tokens(job.layout, sequence_length=job.sequence_length, console=console)
    print_parameters(job, console=console)
    print_memory(job, console=console)
    print_traffic(job, console=console)
    print_crossings(crossings, console=console)
    _print_driver(job, console=console)
    _print_calls(job, console=console)
    _print_not_looked_at(job, console=console)


def _print_driver(job: Job, *, console: Console) -> None:
    if job.driver is None:
        return
    outcome = compare_driver(job.driver, job.layout)
    console.print(Text("Driver", style="bold"))
    indented(console, outcome.describe())
    if not outcome.agrees:
        indented(console, "The right axes:")
        for line in outcome.right_axes.splitlines():
            indented(console, line, by=3)
    console.print()


def _print_calls(job: Job, *, console: Console) -> None:
    reached = reaches(job)
    if not reached:
        return
    console.print(Text("Calls, and whom they reach", style="bold"))
    for reach in reached:
        indented(console, reach.describe())
    console.print()


def _print_not_looked_at(job: Job, *, console: Console) -> None:
    if not job.not_looked_at:
        return
    console.print(Text("Not looked at", style="bold"))
    for line in job.not_looked_at:
        indented(console, line)
    console.print()
