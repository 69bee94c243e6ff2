"""Other ways to lay out the same job that keep the groups which talk most inside an NVLink domain.

Tensor-parallel ranks talk inside every layer and GTP_remat ranks gather weights for it, so these *heavy*
groups want NVLink, tp first. Every alternative keeps the world, the pipeline stages and the runtime CP, and
is offered only when fewer ranks stand in heavy groups that cross domains (compared for tp, then for
gtp_remat) and, where it can be priced, no more bytes leave a domain than before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.arithmetic import CP, TP, Q, W
from rankloom.plan.amounts import bytes_text
from rankloom.plan.collectives import StepShape, step_collectives
from rankloom.plan.cuts import ORDER, fewer_weight_shards, fold, other_order, smaller_tp
from rankloom.plan.links import crossings
from rankloom.plan.model_plan import ModelPlan
from rankloom.plan.model_spec import ModelSpec
from rankloom.plan.stages import most_parameter_bytes

__all__ = ["HEAVY", "Alternative", "CutSummary", "alternatives"]

HEAVY = ("tp", "gtp_remat")  # groups of the weights view that talk inside every layer
MAX_ALTERNATIVES = 3


@dataclass(frozen=True)
class CutSummary:
    """A layout in the numbers that an alternative changes.

    ``crossing``, ``groups``: of tp and gtp_remat groups, how many cross domains, out of how many.
    ``link_bytes``: most bytes that leave one domain in a step, summed over all kinds of groups; None without
    a model and a step. ``parameter_bytes``: of stored parameters on a rank; None without a model.
    """

    num_lanes: int
    num_weight_shards: int
    crossing: tuple[int, int]
    groups: tuple[int, int]
    link_bytes: int | None = None
    parameter_bytes: int | None = None


@dataclass(frozen=True)
class Alternative:
    """Another layout of the same job: the settings that change, and what changes with them, in words."""

    settings: dict[str, object]
    layout: GTPParallelLayout
    before: CutSummary
    after: CutSummary
    text: str


def alternatives(
    layout: GTPParallelLayout,
    topology: Topology,
    *,
    spec: ModelSpec | None = None,
    shape: StepShape | None = None,
    element_size: int = 2,
) -> tuple[Alternative, ...]:
    """At most three, best first; () where no heavy group crosses.

    With ``spec`` parameters of a rank are counted (``element_size`` bytes each where no ``shape`` says it),
    with ``shape`` too the bytes that leave a domain; the rows of a step stay what they are, so cuts whose
    lanes do not divide them are left out.
    """
    rows = 0
    if shape is not None:
        rows = shape.micro_batch_size * shape.num_microbatches * layout.batch_parallel_size
    job = _Job(topology, spec, shape, rows, element_size)
    crossed = job.crossing_ranks(layout)
    if crossed == (0, 0):
        return ()
    before = job.summary(layout)
    found: list[tuple[tuple[tuple[int, int], bool, int, int], Alternative]] = []
    for cost, propose in enumerate((other_order, fold, fewer_weight_shards, smaller_tp)):
        candidate = propose(layout, job.rating)
        if candidate is None or job.rating(candidate) >= crossed:
            continue
        after = job.summary(candidate)
        if after.link_bytes is None or before.link_bytes is None or after.link_bytes <= before.link_bytes:
            keeps_shards = after.num_weight_shards == before.num_weight_shards
            rank = (job.rating(candidate), not keeps_shards, after.link_bytes or 0, cost)
            found.append((rank, _alternative(layout, candidate, before, after)))
    return tuple(alternative for _, alternative in sorted(found, key=lambda f: f[0])[:MAX_ALTERNATIVES])


@dataclass(frozen=True, eq=False)
class _Job:
    """What stays the same whatever the cut; ``rows`` of a step."""

    topology: Topology
    spec: ModelSpec | None
    shape: StepShape | None
    rows: int
    element_size: int

    def crossing_ranks(self, layout: GTPParallelLayout) -> tuple[int, int]:
        """How many ranks stand in tp, and in gtp_remat groups that cross domains."""
        tp, remat = (layout.weights.groups(kind) for kind in HEAVY)
        return (
            len(self.topology.crossing(tp)) * tp.shape[1],
            len(self.topology.crossing(remat)) * remat.shape[1],
        )

    def rating(self, layout: GTPParallelLayout) -> tuple[int, int]:
        """The same; of a cut that this job cannot have, worse than any."""
        lanes_fit = (
            self.shape is None or self.rows % (self.shape.micro_batch_size * layout.batch_parallel_size) == 0
        )
        possible = lanes_fit and (self.spec is None or self._plan(layout) is not None)
        return self.crossing_ranks(layout) if possible else (sys.maxsize, sys.maxsize)

    def summary(self, layout: GTPParallelLayout) -> CutSummary:
        """With bytes, as far as model and step are known and TP can cut the model."""
        tp, remat = (layout.weights.groups(kind) for kind in HEAVY)
        summary = CutSummary(
            num_lanes=layout.batch_parallel_size,
            num_weight_shards=layout.tensor_parallel_num_weight_shards,
            crossing=(len(self.topology.crossing(tp)), len(self.topology.crossing(remat))),
            groups=(len(tp), len(remat)),
        )
        plan = self._plan(layout)
        if plan is None:
            return summary
        if self.shape is None:
            return replace(summary, parameter_bytes=most_parameter_bytes(plan, self.element_size))
        microbatches = self.rows // (self.shape.micro_batch_size * layout.batch_parallel_size)
        records = step_collectives(plan, replace(self.shape, num_microbatches=microbatches))
        found = crossings(layout, self.topology, records)
        return replace(
            summary,
            link_bytes=sum(c.link_bytes or 0 for c in found if c.level == "domain"),
            parameter_bytes=most_parameter_bytes(plan, self.shape.element_size),
        )

    def _plan(self, layout: GTPParallelLayout) -> ModelPlan | None:
        try:
            return None if self.spec is None else ModelPlan.build(self.spec, layout)
        except UserError:
            return None


def _alternative(
    layout: GTPParallelLayout, candidate: GTPParallelLayout, before: CutSummary, after: CutSummary
) -> Alternative:
    settings = {
        name: getattr(candidate, name)
        for name in (TP, W, Q, CP, ORDER)
        if getattr(candidate, name) != getattr(layout, name)
    }
    cut = ", ".join(f"{name} {value}" for name, value in settings.items())
    texts = [*_groups(before, after), *_costs(layout, candidate, before, after)]
    return Alternative(settings, candidate, before, after, f"{cut}: {'; '.join(texts)}")


def _groups(before: CutSummary, after: CutSummary) -> Iterator[str]:
    """For each kind of which some cross, before or after: how many do."""
    for place, kind in enumerate(HEAVY):
        new, old = after.crossing[place], before.crossing[place]
        if new or old:
            yield (
                f"{new} of {after.groups[place]} {kind} groups cross NVLink domains"
                f" instead of {old} of {before.groups[place]}"
            )


def _costs(
    layout: GTPParallelLayout, candidate: GTPParallelLayout, before: CutSummary, after: CutSummary
) -> Iterator[str]:
    """What else changes, for better and for worse."""
    if before.link_bytes is not None and after.link_bytes is not None:
        new, old = bytes_text(after.link_bytes), bytes_text(before.link_bytes)
        yield f"{new} instead of {old} leave a domain in a step"
    if after.num_weight_shards != before.num_weight_shards:
        stages = layout.pipeline_model_parallel_size
        new_share, old_share = (f"1/{cut.num_weight_shards * stages}" for cut in (after, before))
        text = f"each rank stores {new_share} of the weights instead of {old_share}"
        if before.parameter_bytes is not None and after.parameter_bytes is not None:
            text += f" ({bytes_text(after.parameter_bytes)} instead of {bytes_text(before.parameter_bytes)})"
        yield text
    if after.num_lanes != before.num_lanes:
        yield (
            f"{after.num_lanes} lanes instead of {before.num_lanes}: global_batch_size has to be a multiple"
            f" of {after.num_lanes} x micro_batch_size"
        )
    else:
        yield f"{after.num_lanes} lane{'s' * (after.num_lanes != 1)} as before"
    old_tp, new_tp = layout.tensor_model_parallel_size, candidate.tensor_model_parallel_size
    if new_tp != old_tp:
        yield f"a layer's activations are cut over {new_tp} instead of {old_tp} ranks"
    if _reshape_is_right(layout) and not _reshape_is_right(candidate):
        yield "a plain reshape(pp, -1, runtime_cp, tp) of the ranks no longer gives the lanes"


def _reshape_is_right(layout: GTPParallelLayout) -> bool:
    numbers = layout.driver_axes().reshape(-1)
    return bool((numbers[1:] > numbers[:-1]).all())
