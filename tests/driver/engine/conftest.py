"""One Ray cluster for all tests of this folder that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankloom.driver.connection import RayCluster
from rankloom.driver.local_cluster import start_ray


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    with start_ray(num_ranks=8) as started:
        yield started
