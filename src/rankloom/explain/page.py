"""One job as one self-contained HTML page: no request leaves it, no framework is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankloom.explain.derivations import size_rows
from rankloom.explain.facts import job_facts, reaches, script_json
from rankloom.explain.glossary import GLOSSARY
from rankloom.explain.headline import headline
from rankloom.explain.job_settings import job_settings
from rankloom.explain.rendering import render
from rankloom.explain.traffic_facts import group_traffic
from rankloom.layout import GTPParallelLayout
from rankloom.layout.words import stretches_text
from rankloom.plan.job import Job
from rankloom.plan.links import Crossing, crossings

__all__ = ["COLOURINGS", "PARTS", "Colouring", "Message", "colourings", "page"]

PARTS = ("core", "palette", "map", "columns", "light", "panel", "legend", "controls", "terms")  # scripts
# A colouring of a map: its name in the facts, the word on its button, what one colour means.
Colouring = tuple[str, str, str]
COLOURINGS: dict[str, tuple[Colouring, ...]] = {
    "weights": (
        ("weight_shard", "Weight shard", "One colour stores the same slice of every weight."),
        ("tp", "TP", "One colour computes with the same part of each weight."),
        ("pp", "Stage", "One colour computes the same layers."),
        ("replica", "Replica", "One colour holds one copy of the weights."),
    ),
    "tokens": (
        ("lane", "Lane", "One colour trains on the same rows."),
        ("context", "Context", "One colour works on the same part of each row."),
        ("pp", "Stage", "One colour computes the same layers."),
    ),
}
# Colourings by one of the cuts of the weights, in the order in which a cell says them.
CUTS = {"tp": "TP", "weight_shard": "weight shard", "pp": "stage"}


@dataclass(frozen=True)
class Message:
    """Something to say at the top of a page. ``severity``: error, warning or note."""

    severity: str
    text: str


def page(job: Job, *, messages: Sequence[Message] = (), crossing: Sequence[Crossing] | None = None) -> str:
    """The page of a job, a whole HTML document.

    ``crossing``: what leaves domains and nodes, where the caller has it already.
    """
    layout = job.layout
    reached = reaches(job)
    facts = job_facts(job, reached=reached)
    links = crossings(layout, job.topology, job.records) if crossing is None else crossing
    return render(
        "page.html.j2",
        scripts=(*PARTS, "batch", "weights", "start"),
        facts=script_json(facts | {"glossary": dict(GLOSSARY)}),
        job=job,
        headline=headline(layout),
        messages=messages,
        glossary=GLOSSARY,
        weight_colourings=(*_part_colouring(layout), *colourings(layout, "weights")),
        token_colourings=(*colourings(layout, "tokens"), *_call_colourings(job)),
        sequence=facts["sequence"],
        settings=job_settings(job),
        sizes=size_rows(layout),
        memory=job.memory,
        traffic=group_traffic(layout, job.records),
        crossings={(each.group, each.level): each for each in links},
        calls=reached,
        ranks_text=stretches_text,
    )


def colourings(layout: GTPParallelLayout, view: str) -> tuple[Colouring, ...]:
    """The colourings of a view's map that have more than one colour, or the first one if none has."""
    sizes = {
        "weight_shard": layout.gtp_remat_size,
        "replica": layout.num_weight_replicas,
        "tp": layout.tensor_model_parallel_size,
        "pp": layout.pipeline_model_parallel_size,
        "lane": layout.batch_parallel_size,
        "context": layout.runtime_context_parallel_size,
    }
    telling = tuple(each for each in COLOURINGS[view] if sizes[each[0]] > 1)
    return telling or COLOURINGS[view][:1]


def _part_colouring(layout: GTPParallelLayout) -> list[Colouring]:
    """By everything that cuts the weights at once, where more than one thing does."""
    names = [name for name, _, _ in colourings(layout, "weights") if name in CUTS]
    if len(names) < 2:
        return []
    words = ".".join(CUTS[name] for name in CUTS if name in names)
    return [("part", "Part", f"One colour stores the same part of the weights; a cell says {words}.")]


def _call_colourings(job: Job) -> list[Colouring]:
    return [
        (f"call:{index}", f"Call: {call.name}", "One colour gets the same piece; hatched ranks get no call.")
        for index, call in enumerate(job.calls)
    ]
