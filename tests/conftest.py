"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pool import RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def ranks(rank_pool: RankPool) -> Callable[..., list[Any]]:
    """``ranks(4, body, *args, timeout_s=60)``: results of ``body(rank, world_size, *args)`` in rank order.

    The body is a module-level function; it runs with torch.distributed (gloo) initialised and one thread a
    rank. A rank that raises, dies or hangs ends in ``tests.pool.RanksFailed``, which names it.
    """
    return rank_pool.run
