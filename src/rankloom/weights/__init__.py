"""GTP weights: stored as shards, gathered just before use, freed after; products with them, and the loss."""

from __future__ import annotations

from rankloom.weights.functions import linear, vocabulary_rows
from rankloom.weights.handle import GradientReducer, WeightHandle
from rankloom.weights.head import IGNORE, VocabularyHead
from rankloom.weights.regions import TensorParallelRegion
from rankloom.weights.schedule import GatherSchedule
from rankloom.weights.small import SmallUnit
from rankloom.weights.unit import WeightUnit

__all__ = [
    "IGNORE",
    "GatherSchedule",
    "GradientReducer",
    "SmallUnit",
    "TensorParallelRegion",
    "VocabularyHead",
    "WeightHandle",
    "WeightUnit",
    "linear",
    "vocabulary_rows",
]
