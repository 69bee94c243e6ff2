"""The persistent pool of ranks that multi-rank tests run on; use it through the fixture ``ranks``."""

from __future__ import annotations

from tests.pool.pool import RankPool, RanksFailed

__all__ = ["RankPool", "RanksFailed"]
