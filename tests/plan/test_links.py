"""What leaves a domain or a node, against a count edge by edge."""

from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan import CollectiveRecord, ModelPlan, ModelSpec, StepShape, amounts, step_collectives
from rankloom.plan.links import Crossing, crossings
from tests.layout.brute import CASES, Case

KINDS = {
    "tp": ("tp",),
    "gtp_remat": ("gtp_batch", "gtp_seq"),
    "replica": ("dp", "cp"),
    "gtp_remat_replica": ("gtp_batch", "gtp_seq", "dp", "cp"),
    "context": ("cp", "gtp_seq"),
    "lane": ("tp", "cp", "gtp_seq", "pp"),
    "world": ("tp", "gtp_batch", "gtp_seq", "dp", "cp", "pp"),
    "pp": ("pp",),
}


def layout_of(world: int, **settings: int) -> GTPParallelLayout:
    short = {
        "tp": "tensor_model_parallel_size",
        "w": "tensor_parallel_num_weight_shards",
        "q": "tensor_parallel_num_sequence_shards",
        "cp": "context_parallel_size",
        "pp": "pipeline_model_parallel_size",
    }
    named = {short[name]: value for name, value in settings.items()}
    return GTPParallelLayout.resolve(world_size=world, **named)  # type: ignore[arg-type]


def table(found: tuple[Crossing, ...]) -> dict[tuple[str, str], Crossing]:
    rows = {(crossing.level, crossing.group): crossing for crossing in found}
    assert len(rows) == len(found)
    return rows


def gather(group: str, bytes_sent: int, *, count: int = 1) -> CollectiveRecord:
    return CollectiveRecord("x", "all_gather", group, count, bytes_sent)


def test_16_ranks_w_8_stay_in_a_domain_and_span_two_nodes() -> None:
    layout = layout_of(16, w=8)
    topology = Topology.regular(layout, nvlink_domain_size=8, gpus_per_node=4)
    rows = table(crossings(layout, topology))
    inside, across = rows["domain", "gtp_remat"], rows["node", "gtp_remat"]
    assert (inside.num_groups, inside.group_size, inside.num_crossing) == (2, 8, 0)
    assert inside.describe() == "all 2 gtp_remat groups (8 ranks each) stay inside one NVLink domain"
    assert (across.num_crossing, across.example, across.example_places) == (2, tuple(range(8)), (0, 1))
    assert across.describe() == (
        "2 of 2 gtp_remat groups (8 ranks each) cross nodes: ranks 0-7 stand in nodes 0 and 1"
    )
    assert inside.rank_bytes is None
    assert inside.link_bytes is None


def test_16_ranks_w_16_cross_domains_0_and_1() -> None:
    layout = layout_of(16, w=16)
    topology = Topology.regular(layout, nvlink_domain_size=8)
    rows = table(crossings(layout, topology, [gather("gtp_remat", 1_500_000, count=3)]))
    crossing = rows["domain", "gtp_remat"]
    assert crossing.describe() == (
        "1 of 1 gtp_remat groups (16 ranks each) cross NVLink domains: ranks 0-15 stand in NVLink domains"
        " 0 and 1; up to 4.50 MB a step leave one NVLink domain (4.50 MB are sent by a rank)"
    )
    assert {level for level, _ in rows} == {"domain"}


def test_128_ranks_w_64_in_domains_of_64() -> None:
    layout = layout_of(128, w=64, q=64, cp=2)
    rows = table(crossings(layout, Topology.regular(layout, nvlink_domain_size=64)))
    assert rows["domain", "gtp_remat"].num_crossing == 0
    context = rows["domain", "context"]
    assert (context.num_groups, context.num_crossing, context.group_size) == (1, 1, 128)
    assert context.example_places == (0, 1)


def test_a_broadcast_goes_along_the_chain_and_is_not_closed() -> None:
    layout = layout_of(4, tp=4)
    topology = Topology.listed(layout, [[0, 3], [1, 2]])
    send = CollectiveRecord("rows", "broadcast", "lane", 2, 300)
    lane = table(crossings(layout, topology, [send]))["domain", "lane"]
    assert lane.rank_bytes == 600
    assert lane.link_bytes == 200  # 0 -> 1 from one domain, 2 -> 3 from the other, a payload of 100 twice


def test_unknown_places_are_counted_and_not_priced() -> None:
    layout = layout_of(8, w=4)
    topology = Topology.listed(layout, [[0, 1, 2, 3], [4, 5]])
    crossing = table(crossings(layout, topology, [gather("gtp_remat", 10)]))["domain", "gtp_remat"]
    assert (crossing.num_crossing, crossing.num_unknown, crossing.link_bytes) == (0, 1, 0)
    assert crossing.describe() == (
        "1 of 2 gtp_remat groups (4 ranks each) stay inside one NVLink domain;"
        " of 1 the NVLink domain of a rank is not known"
    )


def test_stages_of_a_pipeline_send_straight_to_each_other() -> None:
    layout = GTPParallelLayout.resolve(world_size=4, pipeline_model_parallel_size=2)
    there = CollectiveRecord("there", "send", "pp", 3, 10, stage=0, to_stage=1)
    back = CollectiveRecord("back", "send", "pp", 2, 7, stage=1, to_stage=0)
    records = [gather("replica", 7), there, back]
    rows = table(crossings(layout, Topology.regular(layout, nvlink_domain_size=2), records))
    stages = rows["domain", "pp"]
    # Two groups, 0 2 and 1 3: from domain 0 both send 30 bytes, from domain 1 both send 14.
    assert (stages.num_crossing, stages.rank_bytes, stages.link_bytes) == (2, 30, 60)
    assert rows["domain", "replica"].link_bytes == 0
    assert ("domain", "tp") not in rows


def test_many_places_are_cut_short() -> None:
    layout = layout_of(64, w=64)
    rows = table(crossings(layout, Topology.regular(layout, nvlink_domain_size=8)))
    assert "stand in NVLink domains 0, 1, ... and 7" in rows["domain", "gtp_remat"].describe()


def test_bytes_of_a_real_plan() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    layout = layout_of(16, tp=2, w=8)
    plan = ModelPlan.build(ModelSpec.from_config(config), layout)
    records = step_collectives(plan, StepShape(1, 1, 32, 4))
    rows = table(crossings(layout, Topology.regular(layout, nvlink_domain_size=4), records))
    sent = sum(r.count * r.bytes_sent for r in records if r.group == "gtp_remat")
    # Two groups, ranks 0 2 4 6 and 1 3 5 7, each cross from domain 0 to domain 1 once, and back.
    assert rows["domain", "gtp_remat"].link_bytes == 2 * sent
    assert rows["domain", "gtp_remat"].rank_bytes == sent
    assert rows["domain", "tp"].link_bytes == 0
    assert ("domain", "context") not in rows  # groups of one rank


def brute_link_bytes(
    groups: list[list[int]], places: list[int], records: list[CollectiveRecord], *, per_stage: int
) -> int:
    """``per_stage``: ranks of a pipeline stage, which is the outermost axis in both orders."""
    leaving: Counter[int] = Counter()
    for group in groups:
        for record in records:
            if record.kind == "send":
                (here,) = (places[rank] for rank in group if rank // per_stage == record.stage)
                (there,) = (places[rank] for rank in group if rank // per_stage == record.to_stage)
                if -1 not in (here, there) and here != there:
                    leaving[here] += record.count * record.bytes_sent
                continue
            if record.stage is not None and group[0] // per_stage != record.stage:
                continue
            for at, rank in enumerate(group):
                last = at + 1 == len(group)
                here, there = places[rank], places[group[0 if last else at + 1]]
                if -1 in (here, there) or here == there:
                    continue
                if record.kind != "broadcast":
                    leaving[here] += record.count * record.bytes_sent
                elif not last:
                    leaving[here] += record.count * record.bytes_sent // (len(group) - 1)
    return max(leaving.values(), default=0)


@settings(max_examples=80, deadline=None)
@given(case=CASES, data=st.data())
def test_against_a_count_edge_by_edge(case: Case, data: st.DataObject) -> None:
    layout = case.layout()
    count = st.integers(min_value=1, max_value=9)
    places = data.draw(st.lists(st.integers(-1, 3), min_size=case.world, max_size=case.world))
    listed = [[case.offset + i for i, p in enumerate(places) if p == place] for place in range(4)]
    topology = Topology.listed(layout, listed)
    ranks_of_a_lane = case.tp * case.cp * case.gtp_seq * case.pp
    records = [gather(kind, data.draw(count), count=data.draw(count)) for kind in KINDS if kind != "pp"]
    within = [kind for kind in KINDS if "pp" not in KINDS[kind]]
    for stage in range(case.pp if case.pp > 1 else 0):
        records += [replace(gather(kind, data.draw(count)), stage=stage) for kind in within]
        to_stage = data.draw(st.sampled_from([other for other in range(case.pp) if other != stage]))
        records.append(
            CollectiveRecord("x", "send", "pp", 2, data.draw(count), stage=stage, to_stage=to_stage)
        )
    payload = (ranks_of_a_lane - 1) * data.draw(count)
    records.append(CollectiveRecord("rows", "broadcast", "lane", data.draw(count), payload))
    found = table(crossings(layout, topology, records))
    for kind, axes in KINDS.items():
        groups = [[rank - case.offset for rank in group] for group in case.groups(axes)]
        if len(groups[0]) == 1:
            assert ("domain", kind) not in found
            continue
        crossing = found["domain", kind]
        known = [{places[rank] for rank in group} - {-1} for group in groups]
        crossed = [i for i, reached in enumerate(known) if len(reached) > 1]
        assert (crossing.num_groups, crossing.group_size) == (len(groups), len(groups[0]))
        assert crossing.num_crossing == len(crossed)
        assert crossing.num_unknown == sum(any(places[r] == -1 for r in group) for group in groups)
        if crossed:
            assert list(crossing.example) == [rank + case.offset for rank in groups[crossed[0]]]
            assert crossing.example_places == tuple(sorted(known[crossed[0]]))
        own = [record for record in records if record.group == kind]
        per_stage = case.world // case.pp
        assert crossing.link_bytes == brute_link_bytes(groups, places, own, per_stage=per_stage)
        sent = [
            sum(r.count * r.bytes_sent for r in own if r.stage in (None, stage)) for stage in range(case.pp)
        ]
        assert crossing.rank_bytes == max(sent)
        assert "groups (" in crossing.describe()


@pytest.mark.parametrize("module", [amounts])
def test_examples(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted > 0
    assert outcome.failed == 0
