"""Data as a person looks at it: one record, or the rows of a lane in a step, as plain values and printed."""

from __future__ import annotations

from rankloom.data.inspect.overview import Overview
from rankloom.data.inspect.record import Records, RecordView
from rankloom.data.inspect.step import StepView, step_view

__all__ = ["Overview", "RecordView", "Records", "StepView", "step_view"]
