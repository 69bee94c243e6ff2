"""Request against cluster: what is said where there is no room for all ranks."""

from __future__ import annotations

import pytest

from rankloom.driver.nodes import Node, device_of, refuse_shortage
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout


def node(number: int, *, cpus: int = 16, gpus: int = 8, head: bool = False) -> Node:
    return Node(f"id{number}", f"10.0.0.{number}", f"gpu-{number:02}", cpus, gpus, is_head=head)


def shortage(nodes: list[Node], world_size: int, *, device: str = "cuda", weights: int = 8) -> str:
    layout = GTPParallelLayout.resolve(world_size=world_size, tensor_parallel_num_weight_shards=weights)
    with pytest.raises(UserError) as caught:
        refuse_shortage(nodes, layout, device=device, where="cluster section of run.yaml")  # type: ignore[arg-type]
    return str(caught.value)


def test_sixteen_gpus_asked_and_eight_present() -> None:
    assert shortage([node(1)], 16) == (
        "cluster.world_size 16 needs 16 GPUs, usable 8: 1 node x 8; try cluster.world_size 8, or start Ray "
        "on more nodes with GPUs (cluster section of run.yaml)"
    )


def test_a_head_node_kept_free_of_gpus() -> None:
    nodes = [node(0, gpus=0, head=True), node(1), node(2), node(3)]
    assert shortage(nodes, 32).startswith(
        "cluster.world_size 32 needs 32 GPUs, usable 24: 3 nodes x 8, the head node gpu-00 (10.0.0.0) offers "
        "none; try cluster.world_size 24, or "
    )


def test_nodes_of_several_sizes_and_workers_without() -> None:
    nodes = [node(1), node(2, gpus=4), node(3, gpus=0), node(4, gpus=0)]
    text = "usable 12: 1 node x 8, 1 node x 4, gpu-03 (10.0.0.3), gpu-04 (10.0.0.4) offer none; "
    assert text in shortage(nodes, 16)


def test_the_remedy_is_a_world_that_the_layout_allows() -> None:
    assert "try cluster.world_size 6, or" in shortage([node(1)], 12, weights=6)
    assert "try" not in shortage([node(1, gpus=4)], 16, weights=8)


def test_no_gpu_at_all() -> None:
    assert shortage([node(1, gpus=0)], 8).endswith("set cluster.device to cpu (cluster section of run.yaml)")


def test_cpus() -> None:
    message = shortage([node(1, cpus=4, gpus=0)], 8, device="cpu", weights=2)
    assert (
        "needs 8 CPUs, usable 4: 1 node x 4; try cluster.world_size 4, or start Ray on more nodes" in message
    )
    assert "--num-cpus" in message


def test_room_for_all_is_no_error() -> None:
    layout = GTPParallelLayout.resolve(world_size=8)
    refuse_shortage([node(1)], layout, device="cuda")
    refuse_shortage([node(1, gpus=0)], layout, device="cpu")


def test_auto_is_what_the_cluster_has() -> None:
    assert device_of("auto", [node(1, gpus=0), node(2)]) == "cuda"
    assert device_of("auto", [node(1, gpus=0)]) == "cpu"
    assert device_of("cpu", [node(1)]) == "cpu"
