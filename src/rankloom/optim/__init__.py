"""Sharded optimizer state, exact clipping, schedules counted in samples."""

from __future__ import annotations

from rankloom.optim.pieces import OwnedPart, OwnedPiece
from rankloom.optim.schedule import LearningRate
from rankloom.optim.sharded import ShardedAdamW

__all__ = ["LearningRate", "OwnedPart", "OwnedPiece", "ShardedAdamW"]
