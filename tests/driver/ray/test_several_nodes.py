"""Several Ray nodes on this machine: ranks by NVLink domain, a node that is killed, a gang on other nodes."""

from __future__ import annotations

import json
import tempfile

import pytest

from tests.driver.ray.several_nodes import LAYOUT
from tests.train.processes import Launch

pytestmark = pytest.mark.long


def test_ranks_stay_in_a_domain_and_move_when_a_node_is_lost() -> None:
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:  # short: sockets lie in it
        launched = Launch(folder, module="tests.driver.ray.several_nodes")
        code, out, err = launched.end(timeout_s=300)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert ": 5 nodes, 8 CPUs, 0 GPUs" in found["cluster"]
    assert ": 0 CPUs, 0 GPUs, head" in found["cluster"]
    assert found["first"] == {
        "nodes": ["node1", "node1", "node2", "node2"],
        "devices": [0, 1, 0, 1],
        "domains": ["A"] * 4,
        "warnings": [],
    }
    assert found["second"] == {
        "nodes": ["node9", "node9", "node10", "node10"],
        "devices": [0, 1, 0, 1],
        "domains": ["B"] * 4,
        "warnings": [],
    }
    assert found["sums"] == found["sums again"] == [10.0] * 4
    assert found["lost is node of rank 3"]
    assert found["seconds"] < 30
    first, coordinates = found["lost"].splitlines()[0], LAYOUT.coords(2).describe()
    assert first.startswith((f"rank 2 ({coordinates}) failed in nap, ", "rank 3 ("))
    assert first.endswith("its node was lost (it no longer answers), and with it ranks 2, 3")
    assert launched.left() == []
