"""Slices of a sequence over the runtime context group, and attention over it with document borders."""

from __future__ import annotations

from rankloom.context.attention import ATTENTION_NAME, ContextTokens, attention_forward
from rankloom.context.segments import Segment, segments_of_row
from rankloom.context.slices import ContextSlices

__all__ = [
    "ATTENTION_NAME",
    "ContextSlices",
    "ContextTokens",
    "Segment",
    "attention_forward",
    "segments_of_row",
]
