"""A run on Ray nodes of this machine, one of which is killed: python -m ... FOLDER MIN_WORLD_SIZE SPARE."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"  # before Ray is loaded

from ray.cluster_utils import Cluster

from rankloom.config import resolve
from rankloom.driver.engine import run_ray
from tests.runtime.runs import Recorder, settings

NUM_NODES, CPUS = 2, 2  # beside the head node, which has a CPU and no room for two ranks


class KillsNode(Recorder):
    """Kills the node of rank 3 when step 3 is told."""

    def __init__(self, cluster: Cluster, placement: Path) -> None:
        super().__init__()
        self._cluster, self._placement = cluster, placement
        self.killed = ""

    def step(self, metrics: Mapping[str, object]) -> None:
        super().step(metrics)
        if metrics["step"] == 3 and not self.killed:
            self.killed = json.loads(self._placement.read_text())["ranks"][3]["node_id"]
            [node] = [node for node in self._cluster.worker_nodes if node.node_id == self.killed]
            self._cluster.remove_node(node, allow_graceful=False)


def main(folder: Path, min_world_size: int, num_spare: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(NUM_NODES + num_spare):
        cluster.add_node(num_cpus=CPUS)
    config = settings(folder, parallel={"tensor_parallel_num_weight_shards": 2}, world_size=4)
    config["train"]["max_steps"] = 6
    config["checkpoint"] |= {"save_every": 1, "background": False}
    config["cluster"] |= {"restarts": 1, "min_world_size": min_world_size}
    recorder = KillsNode(cluster, folder / "run" / "placement.json")
    summary = run_ray(resolve(config), reporter=recorder, address=cluster.address)
    placed = json.loads((folder / "run" / "placement.json").read_text())
    told = {
        "steps": [row["step"] for row in recorder.rows],
        "notes": recorder.notes,
        "nodes": [place["node_id"] for place in placed["ranks"]],
        "killed": recorder.killed,
        "model": summary["model"],
    }
    print(json.dumps(told))
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
