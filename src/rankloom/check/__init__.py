"""Everything that can be known about a job without starting it, in one pass."""

from __future__ import annotations

from rankloom.check.data import check_data
from rankloom.check.look import look_at
from rankloom.check.model import check_model, model_config_place, read_model_config
from rankloom.check.outputs import check_outputs
from rankloom.check.report import Report

__all__ = [
    "Report",
    "check_data",
    "check_model",
    "check_outputs",
    "look_at",
    "model_config_place",
    "read_model_config",
]
