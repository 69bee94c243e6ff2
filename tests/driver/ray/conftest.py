"""One Ray cluster for all tests of this folder, and room in it for four ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankloom.driver.connection import RayCluster
from rankloom.driver.gang import Gang
from rankloom.driver.local_cluster import start_ray
from rankloom.driver.placement import Placement
from rankloom.layout import GTPParallelLayout

LAYOUT = GTPParallelLayout.resolve(world_size=4, tensor_parallel_num_weight_shards=2)
NUM_CPUS = 8

StartGang = Callable[..., Gang]


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    """With 8 logical CPUs: 4 for the shared placement, 4 for those that tests make."""
    with start_ray(num_ranks=NUM_CPUS - 1) as started:
        yield started


@pytest.fixture(scope="package")
def placement(cluster: RayCluster) -> Iterator[Placement]:
    with Placement.make(cluster.nodes(), LAYOUT, device="cpu") as made:
        yield made


@pytest.fixture
def start_gang(placement: Placement, tmp_path: Path) -> Iterator[StartGang]:
    """``start_gang(factory, *args, **options)``; its logs are in ``tmp_path``, and it ends with the test."""
    started: list[Gang] = []

    def start(factory: Callable[..., Any], *args: Any, **options: Any) -> Gang:
        options = {"log_folder": tmp_path, "rendezvous": False, "placement": placement, **options}
        started.append(Gang.start(options.pop("placement"), factory, args, **options))
        return started[-1]

    yield start
    for gang in started:
        gang.close()
