"""Which pipeline stage holds a parameter: the embedding the first one, the layers in equal stretches, the
last norm and the output head the last one.

Layer i of L is in stage i * PP // L. A tied embedding is on the first and on the last stage.
"""

from __future__ import annotations

import re

from rankloom.plan.model_plan import ModelPlan
from rankloom.plan.model_spec import Role

__all__ = ["layer_of", "parameter_stages", "stage_layers"]

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
