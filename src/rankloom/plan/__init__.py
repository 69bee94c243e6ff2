"""What a run will do, computed from its settings alone: data, printable, comparable; no torch."""

from __future__ import annotations

from rankloom.plan.model_spec import ModelSpec, ParameterSpec, Role

__all__ = ["ModelSpec", "ParameterSpec", "Role"]
