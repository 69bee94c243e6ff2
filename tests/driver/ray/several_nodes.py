"""Ray nodes on this machine, two to an NVLink domain; one is killed: python -m ... FOLDER."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from rankloom.driver.cluster import join_ray
from rankloom.driver.faults import RankLostError
from rankloom.driver.gang import Gang
from rankloom.driver.placement import Placement
from rankloom.driver.token import private_token
from rankloom.layout import GTPParallelLayout
from tests.driver.ray import workers
from tests.driver.ray.processes import call, submit

DOMAINS = {"node10": "B", "node2": "A", "node9": "B", "node1": "A"}  # in the order they are started
LAYOUT = GTPParallelLayout.resolve(world_size=4, tensor_parallel_num_weight_shards=4)
OPTIONS: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}


@contextmanager
def several_nodes(folder: Path) -> Iterator[Cluster]:
    """A head without room for ranks, and nodes of two CPUs each."""
    os.environ["RAY_TMPDIR"] = str(folder)
    with private_token(folder):
        cluster = Cluster(
            initialize_head=True, head_node_args={**OPTIONS, "num_cpus": 0, "include_dashboard": False}
        )
        for name, domain in DOMAINS.items():
            cluster.add_node(num_cpus=2, node_name=name, labels={"nvlink_domain": domain}, **OPTIONS)
        try:
            yield cluster
        finally:
            cluster.shutdown()


def told(placement: Placement) -> dict[str, Any]:
    places = placement.map.places
    return {
        "nodes": [place.node.hostname for place in places],
        "devices": [place.device for place in places],
        "domains": [place.domain for place in places],
        "warnings": placement.map.warnings(),
    }


def gang(placement: Placement, folder: Path) -> Gang:
    return Gang.start(placement, workers.meeting, (LAYOUT,), log_folder=folder / "logs")


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    with several_nodes(folder) as cluster, join_ray(cluster.address) as joined:
        found["cluster"] = joined.describe()
        with Placement.make(joined.nodes(), LAYOUT, device="cpu") as placement:
            found["first"] = told(placement)
            with gang(placement, folder) as ranks:
                found["sums"] = call(ranks, "sum", 1.0)
                lost = _lose(cluster, ranks, found)
        with Placement.make(joined.nodes(without=lost), LAYOUT, device="cpu") as placement:
            found["second"] = told(placement)
            with gang(placement, folder) as ranks:
                found["sums again"] = call(ranks, "sum", 1.0)
    print(json.dumps(found))


def _lose(cluster: Cluster, ranks: Gang, found: dict[str, Any]) -> tuple[str, ...]:
    """Kills the node of rank 3 in the middle of a call; the nodes that the gang says are lost."""
    place = ranks.placement.map.of(3)
    [node] = [node for node in cluster.worker_nodes if node.node_id == place.node.node_id]
    handles = submit(ranks, "nap", 60.0)
    cluster.remove_node(node, allow_graceful=False)
    since = time.monotonic()
    try:
        ranks.gather(handles, [0])
    except RankLostError as error:
        found["lost"] = str(error)
        found["lost is node of rank 3"] = error.lost_nodes == (place.node.node_id,)
        found["seconds"] = time.monotonic() - since
        return error.lost_nodes
    raise AssertionError("no rank was lost")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
