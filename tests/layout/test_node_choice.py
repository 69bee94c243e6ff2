"""Nodes for segments that need one NVLink domain each."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import node_choice
from rankloom.layout.node_choice import choose_nodes


def test_the_two_nodes_of_the_known_domain() -> None:
    assert choose_nodes({"node1": None, "node2": "A", "node3": "A"}, nodes_per_segment=2) == [
        ("node2", "node3")
    ]


def test_nodes_and_domains_sort_by_number() -> None:
    domains = {"node10": "d10", "node9": "d10", "node2": "d9", "node1": "d9", "node11": "d10"}
    assert choose_nodes(domains, nodes_per_segment=2, num_segments=2) == [
        ("node1", "node2"),
        ("node9", "node10"),
    ]


@pytest.mark.parametrize(
    ("domains", "nodes", "segments", "message"),
    [
        (
            {"node1": None, "node2": None},
            2,
            1,
            "a segment of 2 nodes needs them in one NVLink domain, and no node's domain is known;"
            " the domain of 2 nodes is unknown (node1, node2): it was not probed or labelled;"
            " probe or label them",
        ),
        (
            {"node1": "A", "node2": "B", "node3": "A", "node4": None},
            3,
            1,
            "a segment of 3 nodes needs them in one NVLink domain, and the nodes of known domains"
            " (A: 2, B: 1) make 0; the domain of 1 node is unknown (node4): it was not probed or labelled;"
            " probe or label it, or try nodes_per_segment 2",
        ),
        (
            {"node1": "A", "node2": "A", "node3": "A"},
            2,
            2,
            "2 segments of 2 nodes need each its nodes in one NVLink domain, and the nodes of known domains"
            " (A: 3) make 1; try nodes_per_segment 1 or num_segments 1",
        ),
        (
            {},
            1,
            1,
            "a segment of 1 node needs them in one NVLink domain, and no node's domain is known",
        ),
        ({"node1": "A"}, 0, 1, "nodes_per_segment must be at least 1, not 0"),
        ({"node1": "A"}, 1, 0, "num_segments must be at least 1, not 0"),
    ],
)
def test_refusals(domains: dict[str, str | None], nodes: int, segments: int, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        choose_nodes(domains, nodes_per_segment=nodes, num_segments=segments)
    assert str(refusal.value) == message


def test_many_unknown_nodes_are_cut_short() -> None:
    with pytest.raises(UserError, match=r"of 12 nodes is unknown \(n0, n1, n2, n3, \.\.\.\)"):
        choose_nodes({f"n{i}": None for i in range(12)}, nodes_per_segment=1)


@given(
    domains=st.dictionaries(
        st.integers(0, 40).map("node{}".format), st.sampled_from(["A", "B", "C", None]), max_size=12
    ),
    nodes=st.integers(1, 4),
    segments=st.integers(1, 4),
)
def test_segments_lie_in_one_known_domain_or_there_is_no_way(
    domains: dict[str, str | None], nodes: int, segments: int
) -> None:
    known = [domain for domain in domains.values() if domain is not None]
    possible = sum(known.count(domain) // nodes for domain in set(known))
    if possible < segments:
        with pytest.raises(UserError):
            choose_nodes(domains, nodes_per_segment=nodes, num_segments=segments)
        return
    chosen = choose_nodes(domains, nodes_per_segment=nodes, num_segments=segments)
    assert [len(segment) for segment in chosen] == [nodes] * segments
    assert len({node for segment in chosen for node in segment}) == nodes * segments
    for segment in chosen:
        assert len({domains[node] for node in segment}) == 1
        assert domains[segment[0]] is not None


def test_examples() -> None:
    outcome = doctest.testmod(node_choice)
    assert (outcome.attempted, outcome.failed) == (1, 0)
