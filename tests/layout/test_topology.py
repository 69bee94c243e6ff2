"""Domains and nodes: where ranks stand, and which groups leave them."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.words import ranks_text


def layout_of(world_size: int, **settings: Any) -> GTPParallelLayout:
    return GTPParallelLayout.resolve(world_size=world_size, **settings)


def test_two_domains_of_two_nodes_hold_a_remat_group_of_eight_each() -> None:
    layout = layout_of(16, tensor_parallel_num_weight_shards=8)
    topology = Topology.regular(layout, nvlink_domain_size=8, gpus_per_node=4)
    remat, replica = layout.weights.groups("gtp_remat"), layout.weights.groups("replica")
    assert topology.crossing(remat).tolist() == []
    assert topology.crossing(remat, level="node").tolist() == [0, 1]
    assert topology.crossing(replica).tolist() == list(range(8))


def test_a_remat_group_of_sixteen_leaves_its_domain() -> None:
    layout = layout_of(16, tensor_parallel_num_weight_shards=16)
    topology = Topology.regular(layout, nvlink_domain_size=8, gpus_per_node=4)
    assert topology.crossing(layout.weights.groups("gtp_remat")).tolist() == [0]


def test_domains_follow_the_global_rank() -> None:
    layout = layout_of(4, rank_offset=6)
    assert Topology.regular(layout, nvlink_domain_size=4).domains.tolist() == [1, 1, 2, 2]
    assert Topology.regular(layout, gpus_per_node=2).nodes.tolist() == [3, 3, 4, 4]
    assert Topology.regular(layout).nodes.tolist() == [-1, -1, -1, -1]


def test_listed_domains_leave_the_others_unknown() -> None:
    layout = layout_of(8, tensor_parallel_num_weight_shards=2)
    topology = Topology.listed(layout, [[0, 1, 4], [2, 3]])
    assert topology.domains.tolist() == [0, 0, 1, 1, 0, -1, -1, -1]
    groups = layout.weights.groups("gtp_remat")
    assert topology.crossing(groups).tolist() == []
    assert topology.unknown(groups).tolist() == [2, 3]
    crossing = Topology.listed(layout, [[0, 2, 5], [1, 3]]).crossing(groups)
    assert crossing.tolist() == [0, 1]
    rows = layout.to_json(topology=topology)["ranks"]
    assert [row["nvlink_domain"] for row in rows] == [0, 0, 1, 1, 0, None, None, None]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ([[0, 1], [1, 2]], "nvlink_domains lists rank 1 twice (domain 0 and 1)"),
        ([[0, 0]], "nvlink_domains lists rank 0 twice (domain 0)"),
        ([[0, 4]], "nvlink_domains lists rank 4, and the layout holds ranks 0 to 3"),
    ],
)
def test_a_list_that_cannot_be_is_refused(domains: list[list[int]], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Topology.listed(layout_of(4), domains)
    assert str(caught.value) == message


@pytest.mark.parametrize("setting", ["nvlink_domain_size", "gpus_per_node"])
def test_sizes_are_at_least_one(setting: str) -> None:
    with pytest.raises(UserError, match=f"{setting} must be at least 1, not 0"):
        Topology.regular(layout_of(4), **{setting: 0})  # type: ignore[arg-type]


def test_ranks_in_words() -> None:
    assert ranks_text([3]) == "3"
    assert ranks_text([2, 3]) == "2,3"
    assert ranks_text(list(range(8))) == "0-7"
    assert ranks_text(list(range(0, 20, 2))) == "0,2,4,6,8,10,..,18"
