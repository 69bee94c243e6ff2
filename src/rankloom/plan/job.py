"""Everything known about one job, whichever program runs it: what checks, tables and pages are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankloom.config.batch import BatchArithmetic
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.calls import Call
from rankloom.layout.driver import Driver
from rankloom.plan.collectives import CollectiveRecord, StepShape, step_collectives
from rankloom.plan.memory import MemoryPart, memory_parts
from rankloom.plan.model_plan import ModelPlan
from rankloom.plan.stages import most_parameter_bytes, stage_plans

__all__ = ["Job"]


@dataclass(frozen=True, eq=False)
class Job:
    """A job that has a layout. What is not known about it is None, or empty.

    title            short, for headings: "demo.yaml"
    program          "rankloom", "megatron" or "nemo-rl"
    sources, spelled dotted key -> source ("cli", "file", "default", "derived"); its name in the job's program
    sequence_length  tokens of a row
    plan, step       placement of the model's parameters; what one optimizer step works on
    driver, calls    a driver's own idea of the ranks, and its calls; without a driver calls run over
                     ``Driver.of_layout(layout)``
    not_looked_at    what could not be looked at, and why, one line each
    """

    title: str
    program: str
    origin: str
    layout: GTPParallelLayout
    topology: Topology
    sources: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    batch: BatchArithmetic | None = None
    sequence_length: int | None = None
    plan: ModelPlan | None = None
    step: StepShape | None = None
    driver: Driver | None = None
    calls: tuple[Call, ...] = ()
    not_looked_at: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[ModelPlan, StepShape] | None:
        """What bytes are counted from; None without a model and a batch."""
        return None if self.plan is None or self.step is None else (self.plan, self.step)

    @property
    def parameter_bytes(self) -> int | None:
        """Of the stored parameters of a rank, in the pipeline stage that stores most; None where bytes are
        not ``counted``."""
        return self.counted and most_parameter_bytes(self.counted[0], self.counted[1].element_size)

    @property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """The collectives of a step; none where bytes are not ``counted``."""
        return step_collectives(*self.counted) if self.counted else ()

    @property
    def memory(self) -> tuple[MemoryPart, ...]:
        """What a rank keeps between steps, in the pipeline stage that keeps most; nothing where bytes are not
        ``counted``."""
        if self.counted is None:
            return ()
        plan, step = self.counted
        stages = [memory_parts(stage, element_size=step.element_size) for stage in stage_plans(plan)]
        return max(stages, key=lambda parts: sum(part.num_bytes for part in parts))
