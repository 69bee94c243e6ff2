"""What a rank stores, what it sends in a step, and what of that crosses a link, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rankloom.explain.terminal_style import columns_width, print_table, some_ranks, table
from rankloom.explain.traffic_facts import group_traffic
from rankloom.explain.weight_facts import parameter_facts
from rankloom.plan.job import Job
from rankloom.plan.model_plan import ModelPlan
from rankloom.plan.stages import stage_layers

if TYPE_CHECKING:
    from rankloom.plan.links import Crossing

__all__ = ["print_crossings", "print_memory", "print_parameters", "print_traffic"]

STAGES_WIDTH = 9  # columns


def print_parameters(job: Job, *, console: Console) -> None:
    """How each parameter is cut: its shape, the shape that a rank stores, and the stages that hold it."""
    if job.plan is None:
        return
    staged = job.layout.pipeline_model_parallel_size > 1
    numbers = ("of them", "shape", "a rank stores", *("stage",) * staged)
    made = table("parameter", *numbers, numbers=numbers)
    for fact in parameter_facts(job.plan):
        name = str(fact["name"]).removeprefix("model.")
        stages = (_stages(fact["stages"]),) * staged
        made.add_row(name, str(fact["count"]), _shape(fact["shape"]), _shape(fact["shard_shape"]), *stages)
    caption = 'names without their leading "model."' + _staged_words(job.plan) * staged
    print_table(console, "Parameters", made, caption=caption)


def print_memory(job: Job, *, console: Console) -> None:
    """Bytes that a rank keeps from step to step."""
    if not job.memory:
        return
    made = table("what", "bytes on a rank", "how", numbers=("bytes on a rank",), fixed=("what",))
    for part in job.memory:
        made.add_row(
            part.what, f"{part.num_bytes:,}", f"{part.num_elements:,} x {part.bytes_each}: {part.how}"
        )
    made.add_row("together", f"{sum(part.num_bytes for part in job.memory):,}", "")
    caption = "activations, gathered weights and buffers come on top"
    if job.layout.pipeline_model_parallel_size > 1:
        caption = f"of the pipeline stage that keeps most; {caption}"
    print_table(console, "Memory", made, caption=caption)


def print_traffic(job: Job, *, console: Console) -> None:
    """The collectives of a step by group, with what a rank sends; the groups that send most come first."""
    records = job.records
    if not records:
        return
    headings = ("group, and what for", "collective", "times", "bytes a rank sends")
    made = table(*headings, numbers=headings[2:], fixed=("collective",))
    for group in group_traffic(job.layout, records):
        number = f"{group.number} group{'s' * (group.number > 1)} of {group.size}"
        title = Text.assemble((group.group, "bold"), f": {number}")
        made.add_row(title, "", "", Text(f"{group.num_bytes or 0:,}", style="bold"))
        for exchange in group.exchanges:
            made.add_row(
                f"  {exchange.what}", exchange.kind, f"{exchange.count:,}", f"{exchange.num_bytes:,}"
            )
    caption = "of a broadcast, what its first rank sends; the others send nothing"
    if job.layout.pipeline_model_parallel_size > 1:
        caption = f"of each kind of group, in the pipeline stage that sends most; {caption}"
    print_table(console, "Collectives of a step", made, caption=caption)


def print_crossings(crossings: Sequence[Crossing], *, console: Console) -> None:
    """The groups that leave an NVLink domain or a node, with the most bytes that leave one in a step."""
    if not crossings:
        return
    headings = ("group", "leave a", "groups", "bytes over a link")
    rows = [
        (
            crossing.group,
            crossing.level,
            f"{crossing.num_crossing} of {crossing.num_groups}",
            "" if crossing.link_bytes is None else f"{crossing.link_bytes:,}",
        )
        for crossing in crossings
    ]
    made = table(*headings, "for example ranks", numbers=headings[3:], fixed=(*headings, "for example ranks"))
    room = console.width - 1 - columns_width(headings, rows)
    for texts, crossing in zip(rows, crossings, strict=True):
        made.add_row(*texts, some_ranks(crossing.example, width=room) if crossing.example else "")
    caption = "domain: NVLink domain; bytes over a link: the most that leave one of them in a step"
    if unknown := max(crossing.num_unknown for crossing in crossings):
        caption += f"; of up to {unknown} groups the place of a rank is not known"
    print_table(console, "What leaves NVLink domains and nodes", made, caption=caption)


def _stages(stages: object) -> str:
    """ "0", "0-3" of the layers, "0,3" of a tied embedding."""
    assert isinstance(stages, list)
    return some_ranks([each["stage"] for each in stages], width=STAGES_WIDTH)


def _staged_words(plan: ModelPlan) -> str:
    """How many layers a stage holds, and that it stores nothing of another stage's."""
    counts = [
        len(each) for each in stage_layers(plan.spec.num_layers, plan.layout.pipeline_model_parallel_size)
    ]
    few, most = min(counts), max(counts)
    layers = f"{few} layer{'s' * (few != 1)}" if few == most else f"{few} to {most} layers"
    return f"; stage: those that hold it, {layers} each; a rank stores nothing of what other stages hold"


def _shape(shape: object) -> str:
    assert isinstance(shape, tuple | list)
    return " x ".join(map(str, shape))
