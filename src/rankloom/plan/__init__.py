"""What a run will do, computed from its settings alone: data, printable, comparable; no torch."""

from __future__ import annotations

from rankloom.plan.batch import BatchArithmetic, sequence_multiple
from rankloom.plan.collectives import (
    GROUP_AXES,
    CollectiveRecord,
    StepShape,
    bytes_by_group,
    evaluation_collectives,
    step_collectives,
)
from rankloom.plan.config_fields import refuse_unknown_fields
from rankloom.plan.links import Crossing, crossings
from rankloom.plan.model_plan import FlatUnit, ModelPlan, PieceRange
from rankloom.plan.model_spec import ModelSpec, ParameterSpec, Role
from rankloom.plan.placement import Box, Placement, place

__all__ = [
    "GROUP_AXES",
    "BatchArithmetic",
    "Box",
    "CollectiveRecord",
    "Crossing",
    "FlatUnit",
    "ModelPlan",
    "ModelSpec",
    "ParameterSpec",
    "PieceRange",
    "Placement",
    "Role",
    "StepShape",
    "bytes_by_group",
    "crossings",
    "evaluation_collectives",
    "place",
    "refuse_unknown_fields",
    "sequence_multiple",
    "step_collectives",
]
