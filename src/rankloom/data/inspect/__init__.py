"""Data as a person looks at it: one record, or the rows of a lane in a step, as plain values and printed."""

from __future__ import annotations

from rankloom.data.inspect.looks import Look, TrainingLook, ValidationLook
from rankloom.data.inspect.overview import Overview
from rankloom.data.inspect.record import RecordView
from rankloom.data.inspect.records import Records
from rankloom.data.inspect.step import StepView, step_view

__all__ = [
    "Look",
    "Overview",
    "RecordView",
    "Records",
    "StepView",
    "TrainingLook",
    "ValidationLook",
    "step_view",
]
