"""Megatron-Energon as a source of rows: a prepared data set, split into virtual lanes.

Nothing here imports Energon until a data set of it is opened.
"""

from __future__ import annotations

from rankloom.data.energon.library import hushed, require_energon

__all__ = ["hushed", "require_energon"]
