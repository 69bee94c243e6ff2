"""Which pipeline stage holds a parameter: the embedding the first one, the layers in equal stretches, the
last norm and the output head the last one.

Layer i of L is in stage i * PP // L. A tied embedding is on the first and on the last stage.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rankloom.plan.model_plan import FlatUnit, ModelPlan
from rankloom.plan.model_spec import Role
from rankloom.plan.placement import Placement

__all__ = ["layer_of", "most_parameter_bytes", "parameter_stages", "stage_layers", "stage_plans"]

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """The layer that a parameter belongs to, by its Hugging Face name; None outside the layers."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def stage_layers(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """The layers of each stage; with fewer layers than stages some are empty.

    >>> stage_layers(6, 4)
    (range(0, 2), range(2, 3), range(3, 5), range(5, 6))
    """
    starts = [-(-stage * num_layers // num_stages) for stage in range(num_stages + 1)]
    return tuple(range(starts[stage], starts[stage + 1]) for stage in range(num_stages))


def parameter_stages(plan: ModelPlan) -> dict[str, tuple[int, ...]]:
    """The stages that hold each parameter, ascending, by Hugging Face name."""
    num_stages, num_layers = plan.layout.pipeline_model_parallel_size, plan.spec.num_layers
    last = num_stages - 1
    ends = (0, last) if plan.spec.tie_word_embeddings and last else (0,)
    stages: dict[str, tuple[int, ...]] = {}
    for p in plan.spec.parameters:
        layer = layer_of(p.name)
        if layer is not None:
            stages[p.name] = (layer * num_stages // num_layers,)
        else:
            stages[p.name] = ends if p.role is Role.EMBEDDING else (last,)
    return stages


def stage_plans(plan: ModelPlan) -> tuple[ModelPlan, ...]:
    """The plan of each stage, first to last: its parameters, its units, its number of layers."""
    num_stages = plan.layout.pipeline_model_parallel_size
    if num_stages == 1:
        return (plan,)
    holders = parameter_stages(plan)

    def of_stage(unit: FlatUnit, stage: int) -> tuple[Placement, ...]:
        return tuple(p for p in unit.placements if stage in holders[p.name])

    return tuple(
        replace(
            plan,
            spec=replace(
                plan.spec,
                num_layers=len(layers),
                parameters=tuple(p for p in plan.spec.parameters if stage in holders[p.name]),
            ),
            weights=tuple(unit for unit in plan.weights if of_stage(unit, stage)),
            small=replace(plan.small, placements=of_stage(plan.small, stage)),
            is_first=stage == 0,
            is_last=stage == num_stages - 1,
        )
        for stage, layers in enumerate(stage_layers(plan.spec.num_layers, num_stages))
    )


def most_parameter_bytes(plan: ModelPlan, element_size: int) -> int:
    """Bytes of stored parameters on a rank of the stage that stores most."""
    return max(stage.parameter_bytes(element_size) for stage in stage_plans(plan))
