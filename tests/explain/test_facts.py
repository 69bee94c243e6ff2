"""The facts in a page are the layout's: compared with layouts counted out by hand."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from rankloom.explain.batch_facts import batch_facts, sequence_facts
from rankloom.explain.facts import job_facts, script_json
from rankloom.explain.rank_facts import KINDS, blocks, coordinates, groups, packed
from rankloom.explain.traffic_facts import group_traffic
from rankloom.explain.weight_facts import parameter_facts
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan import BatchArithmetic, ModelPlan, ModelSpec
from tests.explain.page_jobs import TINY, bare, demo, driven
from tests.layout.brute import CASES, COMPOSITES, PRIMITIVE, Case


def unpacked(values, world: int) -> list[int]:
    return [values] * world if isinstance(values, int) else values


@settings(deadline=None, max_examples=40)
@given(CASES)
def test_coordinates(case: Case) -> None:
    layout = case.layout()
    found = coordinates(layout, Topology.regular(layout, nvlink_domain_size=3, gpus_per_node=2))
    for i, (rank, at) in enumerate(case.coordinates().items()):
        expected = at | case.indices(at) | {"domain": rank // 3, "node": rank // 2}
        assert {name: unpacked(values, case.world)[i] for name, values in found.items()} == expected


@settings(deadline=None, max_examples=40)
@given(CASES)
def test_groups(case: Case) -> None:
    found = groups(case.layout())
    assert set(found) == set(KINDS)
    for kind, facts in found.items():
        view, axes, maps = KINDS[kind]
        expected = case.groups(COMPOSITES.get((view, axes), (axes,)))
        members: dict[int, list[int]] = {}
        for i, group in enumerate(unpacked(facts["of"], case.world)):
            members.setdefault(group, []).append(case.offset + i)
        assert [members[group] for group in sorted(members)] == expected
        assert (facts["number"], facts["size"]) == (len(expected), len(expected[0]))
        assert facts["maps"] == list(maps)
    assert set(PRIMITIVE) > {"tp", "pp"}


def test_equal_numbers_are_one() -> None:
    assert packed(np.array([3, 3, 3])) == 3
    assert packed(np.array([0, 1])) == [0, 1]


def ranks_of(box: dict[str, object]) -> list[int]:
    return [rank for _, runs in box["nodes"] for first, count in runs for rank in range(first, first + count)]


def test_a_box_is_a_domain_with_its_nodes() -> None:
    layout = GTPParallelLayout.resolve(world_size=12, rank_offset=4)
    assert blocks(Topology.regular(layout, nvlink_domain_size=8, gpus_per_node=4)) == [
        {"label": "NVLink domain 0", "domain": 0, "nodes": [[1, [[4, 4]]]]},
        {"label": "NVLink domain 1", "domain": 1, "nodes": [[2, [[8, 4]]], [3, [[12, 4]]]]},
    ]


def test_listed_domains_may_be_scattered_or_not_known() -> None:
    layout = GTPParallelLayout.resolve(world_size=8)
    found = blocks(Topology.listed(layout, [[0, 1, 6], [2]]))
    assert [(box["label"], box["nodes"]) for box in found] == [
        ("NVLink domain 0", [[-1, [[0, 2], [6, 1]]]]),
        ("NVLink domain 1", [[-1, [[2, 1]]]]),
        ("Domain not known", [[-1, [[3, 3], [7, 1]]]]),
    ]


def test_a_very_large_domain_is_shown_in_parts() -> None:
    layout = GTPParallelLayout.resolve(world_size=320)
    found = blocks(Topology.regular(layout, nvlink_domain_size=1000))
    assert [box["label"] for box in found][:2] == [
        "NVLink domain 0, ranks 0 to 63",
        "NVLink domain 0, ranks 64 to 127",
    ]
    assert [rank for box in found for rank in ranks_of(box)] == list(range(320))


def test_rows_of_lanes() -> None:
    layout = GTPParallelLayout.resolve(world_size=6)
    batch = BatchArithmetic.compute(layout, global_batch_size=24, micro_batch_size=2)
    facts = batch_facts(batch)
    assert facts is not None
    assert facts["rows_per_microbatch"] == 12
    by_hand = {lane: [i for i in range(12) if i // 2 == lane] for lane in range(6)}
    assert {lane: list(range(*rows)) for lane, rows in enumerate(facts["lane_rows"])} == by_hand
    assert batch_facts(None) is None


def test_chunks_of_the_demo() -> None:
    facts = sequence_facts(demo().layout, 256)
    assert facts["chunks"] == [
        ((0, 32), (224, 256)),
        ((32, 64), (192, 224)),
        ((64, 96), (160, 192)),
        ((96, 128), (128, 160)),
    ]
    assert (facts["length"], facts["tokens_per_rank"], facts["slices"]) == (256, 64, None)


@pytest.mark.parametrize(("length", "asked"), [(None, None), (250, 250)])
def test_a_row_of_no_known_or_possible_length_is_cut_into_chunks(
    length: int | None, asked: int | None
) -> None:
    facts = sequence_facts(demo().layout, length)
    assert (facts["length"], facts["asked"], facts["unit"], facts["multiple"]) == (None, asked, 8, 8)
    assert facts["chunks"][1] == ((1, 2), (6, 7))


def test_sequence_parallelism_cuts_the_tokens_of_a_rank() -> None:
    job = bare(world_size=4, tensor_model_parallel_size=2, context_parallel_size=2)
    slices = sequence_facts(job.layout, 16)["slices"]
    # Context 0 holds tokens 0-3 and 12-15; its TP ranks have half of these eight each.
    assert slices == [[[(0, 4)], [(12, 16)]], [[(4, 8)], [(8, 12)]]]
    job = bare(world_size=3, tensor_model_parallel_size=3)
    assert sequence_facts(job.layout, 6)["slices"] == [[[(0, 2)], [(2, 4)], [(4, 6)]]]
    job = bare(world_size=6, tensor_model_parallel_size=3, context_parallel_size=2)
    assert sequence_facts(job.layout, 12)["slices"][0] == [[(0, 2)], [(2, 3), (9, 10)], [(10, 12)]]


@pytest.mark.parametrize("sizes", [{"world_size": 6, "tensor_parallel_num_weight_shards": 6}, {}])
def test_boxes_of_a_parameter_cover_it_once(sizes: dict[str, int]) -> None:
    job = bare(
        **(
            {"world_size": 12, "tensor_model_parallel_size": 2}
            | {"tensor_parallel_num_weight_shards": 12}
            | sizes
        )
    )
    plan = ModelPlan.build(ModelSpec.from_config(TINY | {"vocab_size": 101}), job.layout)
    facts = parameter_facts(plan)
    assert sum(fact["count"] for fact in facts) == len(plan.placements)
    for fact in facts:
        if len(fact["shape"]) < 2:
            continue
        seen = np.zeros(fact["shape"], dtype=int)
        for t, s in product(range(job.layout.tensor_model_parallel_size), range(job.layout.gtp_remat_size)):
            rows = fact["rows"][t if len(fact["rows"]) > 1 else 0][s]
            cols = fact["cols"][t if len(fact["cols"]) > 1 else 0]
            seen[slice(*rows), slice(*cols)] += 1
        assert (seen == 1).all(), fact["name"]


def test_equal_layers_are_one_parameter() -> None:
    plan = demo().plan
    assert plan is not None
    names = {fact["name"]: fact["count"] for fact in parameter_facts(plan)}
    assert names["model.layers.*.self_attn.q_proj.weight"] == 4
    assert names["model.embed_tokens.weight"] == 1
    assert names["model.norm.weight"] == 1


def test_traffic_adds_up_to_the_records() -> None:
    job = driven()
    rows = group_traffic(job.layout, job.records)
    sums = {row.group: row.num_bytes for row in rows}
    for group in {record.group for record in job.records}:
        assert sums[group] == sum(r.count * r.bytes_sent for r in job.records if r.group == group)
    assert list(sums.values()) == sorted(sums.values(), reverse=True)


def test_a_call_has_the_piece_of_every_rank() -> None:
    from rankloom.explain.facts import reaches

    job = driven()
    everybody, some = job_facts(job, reached=reaches(job))["calls"]
    assert everybody["pieces"] == [rank // 4 for rank in range(24)]
    assert some["pieces"] == [-1 if rank % 4 else rank // 4 for rank in range(24)]


def test_json_cannot_end_its_script_element() -> None:
    facts = {"title": "</script><script>alert('&\u2028')</script>"}
    text = script_json(facts)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == facts


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_held_by_their_stages(tied: bool) -> None:
    layout = GTPParallelLayout.resolve(
        world_size=6, tensor_model_parallel_size=2, pipeline_model_parallel_size=3
    )
    model = TINY | {"num_hidden_layers": 5, "tie_word_embeddings": tied}
    found = {
        fact["name"]: [(each["stage"], each["layers"]) for each in fact["stages"]]
        for fact in parameter_facts(ModelPlan.build(ModelSpec.from_config(model), layout))
    }
    layers = [(0, (0, 2)), (1, (2, 4)), (2, (4, 5))]
    assert found.pop("model.embed_tokens.weight") == ([(0, None), (2, None)] if tied else [(0, None)])
    assert found.pop("model.norm.weight") == [(2, None)]
    assert found.pop("lm_head.weight", [(2, None)]) == [(2, None)]
    assert set(map(str, found.values())) == {str(layers)}
