"""Jobs of other programs, Megatron-LM and NeMo-RL, read as they are written. Nothing is ever executed."""

from __future__ import annotations

from rankloom.config.foreign.job import ForeignJob
from rankloom.config.foreign.read import read_foreign

__all__ = ["ForeignJob", "read_foreign"]
