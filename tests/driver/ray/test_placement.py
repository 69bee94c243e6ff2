"""Room for ranks, in a cluster of one node."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray

from rankloom.driver.connection import RayCluster
from rankloom.driver.placement import Placement, on_this_node
from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout


def test_every_rank_has_its_place(cluster: RayCluster, placement: Placement) -> None:
    (node,) = cluster.nodes()
    places = placement.map.places
    assert [(p.rank, p.device, p.domain) for p in places] == [(rank, rank, None) for rank in range(4)]
    assert all(p.node == node for p in places)
    assert sorted(p.bundle for p in places) == [0, 1, 2, 3]
    assert placement.map.warnings() == []
    assert placement.lost_nodes() == ()


def test_too_many_ranks_are_refused_before_anything_is_made(cluster: RayCluster) -> None:
    since, before = time.monotonic(), len(ray.util.placement_group_table())
    with pytest.raises(UserError, match=r"cluster\.world_size 16 needs 16 CPUs, usable 8: 1 node x 8"):
        Placement.make(cluster.nodes(), GTPParallelLayout.resolve(world_size=16), device="cpu")
    with pytest.raises(UserError, match=r"needs 16 GPUs, usable 0: the head node .* offers none"):
        Placement.make(cluster.nodes(), GTPParallelLayout.resolve(world_size=16), device="cuda")
    assert time.monotonic() - since < 30
    assert len(ray.util.placement_group_table()) == before


def test_room_that_others_hold_is_not_waited_for_without_end(
    cluster: RayCluster, placement: Placement
) -> None:
    layout = GTPParallelLayout.resolve(world_size=8)
    with pytest.raises(RunError, match=r"no room for 8 ranks within 0.5 s: .* and 4 CPUs are free"):
        Placement.make(cluster.nodes(), layout, device="cpu", patience_s=0.5)
    with Placement.make(cluster.nodes(), GTPParallelLayout.resolve(world_size=4), device="cpu"):
        pass  # what could not be had was given back


def test_segments_need_known_domains(cluster: RayCluster) -> None:
    layout = GTPParallelLayout.resolve(world_size=2)
    with pytest.raises(UserError, match="no node's domain is known"):
        Placement.make(cluster.nodes(), layout, device="cpu", nodes_per_segment=1)


def test_a_missing_path_is_named_with_its_node(placement: Placement, tmp_path: Path) -> None:
    there, absent = str(tmp_path), str(tmp_path / "chats.jsonl")
    placement.refuse_missing([there])
    (node,) = placement.map.nodes
    with pytest.raises(UserError) as caught:
        placement.refuse_missing([there, absent])
    assert str(caught.value).splitlines() == [
        f"node {node.name} has no {absent}",
        "every node with ranks needs it: use a folder that all of them share",
    ]


def test_the_controller_is_pinned_to_this_node(cluster: RayCluster) -> None:
    (node,) = cluster.nodes()
    assert on_this_node().node_id == node.node_id
    assert on_this_node().soft is False


def test_the_folders_of_a_placement_go_with_it(cluster: RayCluster) -> None:
    with Placement.make(cluster.nodes(), GTPParallelLayout.resolve(world_size=1), device="cpu") as made:
        (folder,) = made.folders.values()
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert not Path(folder).exists()
