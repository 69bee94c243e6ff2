"""Ranks on nodes: tiles inside NVLink domains where they fit, names ordered by their numbers, unknown domains
never taken for known ones."""

from __future__ import annotations

from collections import Counter

import pytest

from rankloom.driver.nodes import Node
from rankloom.driver.places import PlacementMap, RankPlace
from rankloom.driver.seats import choose_seats, tile_span
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout


def nodes(*names: str, gpus: int = 4) -> list[Node]:
    return [Node(f"id-{name}", name, name, 16, gpus) for name in names]


def layout(world_size: int, shards: int, **settings: object) -> GTPParallelLayout:
    return GTPParallelLayout.resolve(
        world_size=world_size,
        tensor_parallel_num_weight_shards=shards,
        **settings,  # type: ignore[arg-type]
    )


def placed(
    names: dict[str, str | None], wanted: GTPParallelLayout, *, segment: int | None = None
) -> PlacementMap:
    """Nodes of 4 GPUs by name, with their domains."""
    domains = {f"id-{name}": domain for name, domain in names.items()}
    seats = choose_seats(nodes(*names), domains, wanted, device="cuda", nodes_per_segment=segment)
    numbers = Counter[str]()
    places = []
    for rank, seat in enumerate(seats):
        places.append(RankPlace(rank, rank, seat, numbers[seat.node_id], domains[seat.node_id]))
        numbers[seat.node_id] += 1
    return PlacementMap(wanted, "cuda", tuple(places))


def names_of(found: PlacementMap) -> list[str]:
    return [node.hostname for node in found.nodes]


def test_a_segment_of_two_nodes_takes_those_of_known_domain() -> None:
    found = placed({"n1": "A", "n2": None, "n3": "A"}, layout(8, 8), segment=2)
    assert names_of(found) == ["n1", "n3"]


def test_a_segment_on_unknown_nodes_names_the_missing_probe() -> None:
    with pytest.raises(UserError, match=r"no node's domain is known; .*n1, n2.*probe or label them"):
        placed({"n1": None, "n2": None}, layout(8, 8), segment=2)


def test_two_domains_of_two_nodes_hold_one_remat_group_each() -> None:
    """Listed as they came up, by turns."""
    found = placed({"n1": "A", "n2": "B", "n3": "A", "n4": "B"}, layout(16, 8))
    assert names_of(found) == ["n1", "n3", "n2", "n4"]
    for group in found.layout.weights.groups("gtp_remat"):
        assert len({found.of(rank).domain for rank in group.tolist()}) == 1
    assert found.warnings() == []


def test_a_group_over_two_domains_is_warned_about_with_the_link() -> None:
    found = placed({"n1": "A", "n2": "B", "n3": "A", "n4": "B"}, layout(16, 16))
    (warning,) = found.warnings()
    assert warning == (
        "1 of 1 gtp_remat groups (16 ranks each) cross NVLink domains: ranks 0-15 stand in NVLink domains 0 "
        "and 1 (NVLink domain 0 is A, 1 is B)"
    )


def test_nodes_and_domains_follow_the_numbers_in_their_names() -> None:
    found = placed({"node10": "d10", "node9": "d9", "node2": "d9", "node1": "d10"}, layout(16, 4))
    assert names_of(found) == ["node2", "node9", "node1", "node10"]


def test_the_smallest_domain_that_holds_all_is_taken() -> None:
    names = {"n1": "A", "n2": "A", "n3": "A", "n4": "B", "n5": "B"}
    assert names_of(placed(names, layout(8, 8))) == ["n4", "n5"]


def test_what_is_left_over_beside_whole_tiles_comes_last() -> None:
    """A domain of 12 seats holds one tile of 8; its other 4 are half of the next tile only if they must."""
    names = {"n1": "A", "n2": "A", "n3": "A", "n4": "B", "n5": "B"}
    assert names_of(placed(names, layout(16, 8))) == ["n1", "n2", "n4", "n5"]
    assert names_of(placed(names, layout(20, 4))) == ["n1", "n2", "n3", "n4", "n5"]


def test_unknown_nodes_are_no_domain() -> None:
    """Neither together nor with a known one: they are filled last, one by one."""
    found = placed({"n1": None, "n2": "A", "n3": None}, layout(12, 4))
    assert names_of(found) == ["n2", "n1", "n3"]
    assert [place.domain for place in found.places[::4]] == ["A", None, None]
    assert found.topology().domains.tolist() == [0] * 4 + [-1] * 8
    (unknown,) = found.warnings()
    assert unknown.startswith("the NVLink domain of 8 ranks is not known (4-11): ")
    assert "--labels nvlink_domain=NAME" in unknown


def test_groups_that_leave_a_node_of_unknown_domain_are_warned_about() -> None:
    crossing, unknown = placed({"n1": None, "n2": None}, layout(8, 8)).warnings()
    assert "gtp_remat groups (8 ranks each) cross nodes: ranks 0-7 stand in nodes 0 and 1" in crossing
    assert "(node 0 is n1, 1 is n2)" in crossing
    assert "of 8 ranks is not known" in unknown


def test_the_span_of_a_tile() -> None:
    assert tile_span(layout(16, 8, tensor_model_parallel_size=2)) == 8
    assert tile_span(layout(16, 2, context_parallel_size=2)) == 2
    assert tile_span(layout(16, 2, context_parallel_size=2, rank_order="tp-cp-gtp-dp-pp")) == 3


def test_the_table_and_the_json() -> None:
    found = placed({"n1": "A", "n2": "B"}, layout(8, 4))
    assert found.table().splitlines() == [
        "ranks  node  GPUs  NVLink domain",
        "0-3    n1    0-3   A",
        "4-7    n2    0-3   B",
    ]
    assert found.to_json()[5] == {
        "rank": 5,
        "node": "n2",
        "address": "n2",
        "node_id": "id-n2",
        "device": 1,
        "nvlink_domain": "B",
    }
