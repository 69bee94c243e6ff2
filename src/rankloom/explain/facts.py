"""All that a page draws, as JSON: computed from layout and plan, so that a page computes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rankloom.explain.batch_facts import batch_facts, sequence_facts
from rankloom.explain.rank_facts import blocks, coordinates, groups, packed
from rankloom.explain.weight_facts import parameter_facts

if TYPE_CHECKING:
    from rankloom.layout.calls import Reach
    from rankloom.plan.job import Job

__all__ = ["call_facts", "job_facts", "reaches", "script_json"]


def job_facts(job: Job, *, reached: tuple[Reach, ...] = ()) -> dict[str, object]:
    """The facts of a job: ranks, groups, boxes, batch, row, parameters and calls."""
    layout = job.layout
    return {
        "title": job.title,
        "world": layout.world_size,
        "first": layout.rank_offset,
        "at": coordinates(layout, job.topology),
        "counts": {
            "tp": layout.tensor_model_parallel_size,
            "pp": layout.pipeline_model_parallel_size,
            "lane": layout.batch_parallel_size,
            "context": layout.runtime_context_parallel_size,
            "weight_shard": layout.gtp_remat_size,
            "replica": layout.num_weight_replicas,
        },
        "groups": groups(layout),
        "blocks": blocks(job.topology),
        "batch": batch_facts(job.batch),
        "sequence": sequence_facts(layout, job.sequence_length),
        "parameters": parameter_facts(job.plan) if job.plan is not None else [],
        "calls": [call_facts(reach) for reach in reached],
    }


def reaches(job: Job) -> tuple[Reach, ...]:
    """Whom each call of the job reaches; without a driver of its own the layout's axes are used."""
    if not job.calls:
        return ()
    from rankloom.layout.calls import reach
    from rankloom.layout.driver import Driver

    driver = job.driver or Driver.of_layout(job.layout)
    return tuple(reach(call, driver, job.layout) for call in job.calls)


def call_facts(reach: Reach) -> dict[str, object]:
    """A call: its name, the number of pieces, and the piece of every rank (-1: never called)."""
    return {"name": reach.call.name, "number": reach.num_pieces, "pieces": packed(reach.pieces)}


def script_json(facts: object) -> str:
    """JSON that is safe inside a script element: no character of it can end the element."""
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
