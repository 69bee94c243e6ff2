"""Cuts that keep tp and gtp_remat groups inside NVLink domains."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan import ModelPlan, ModelSpec, StepShape
from rankloom.plan.alternatives import Alternative, alternatives
from tests.layout.brute import CASES, Case
from tests.plan.test_links import layout_of

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 4,
    "vocab_size": 128,
}
SPEC = ModelSpec.from_config(MODEL)
SWAPPED = "tp-cp-gtp-dp-pp"
KEPT = ("world_size", "pipeline_model_parallel_size", "runtime_context_parallel_size")


def find(layout: GTPParallelLayout, size: int, **priced: object) -> tuple[Alternative, ...]:
    return alternatives(layout, Topology.regular(layout, nvlink_domain_size=size), **priced)  # type: ignore[arg-type]


def swapped(world: int, **sizes: int) -> GTPParallelLayout:
    made = layout_of(world, **sizes)
    return GTPParallelLayout(**{**made.__dict__, "rank_order": SWAPPED})


def test_nothing_where_the_heavy_groups_stay_inside() -> None:
    assert find(layout_of(128, w=64, q=64, cp=2), 64) == ()
    assert find(layout_of(16, w=8), 8) == ()


def test_the_other_rank_order_comes_first() -> None:
    found = find(swapped(16, w=8, cp=2), 8)
    assert [alternative.settings for alternative in found] == [
        {"rank_order": "tp-gtp-cp-dp-pp"},
        {"tensor_parallel_num_sequence_shards": 2, "context_parallel_size": 1},
        {"tensor_parallel_num_weight_shards": 4},
    ]
    assert [alternative.text for alternative in found] == [
        "rank_order tp-gtp-cp-dp-pp: 0 of 2 gtp_remat groups cross NVLink domains instead of 2 of 2;"
        " 8 lanes as before; a plain reshape(pp, -1, runtime_cp, tp) of the ranks no longer gives the lanes",
        "tensor_parallel_num_sequence_shards 2, context_parallel_size 1: 0 of 2 gtp_remat groups"
        " cross NVLink domains instead of 2 of 2; 8 lanes as before",
        "tensor_parallel_num_weight_shards 4: 0 of 4 gtp_remat groups cross NVLink domains instead of 2 of 2;"
        " each rank stores 1/4 of the weights instead of 1/8; 8 lanes as before",
    ]


def test_of_cuts_that_store_the_same_the_one_with_fewer_bytes_over_links_comes_first() -> None:
    found = find(swapped(16, w=8, cp=2), 8, spec=SPEC, shape=StepShape(1, 4, 64, 4))
    stored = [alternative.after.num_weight_shards for alternative in found]
    leaving = [alternative.after.link_bytes or 0 for alternative in found]
    assert stored == [8, 8, 4]
    assert leaving[0] < leaving[1]
    assert list(found[0].settings) == ["tensor_parallel_num_sequence_shards", "context_parallel_size"]
    assert max(leaving) <= (found[0].before.link_bytes or 0)


def test_shares_of_the_weights_count_pipeline_stages() -> None:
    texts = [found.text for found in find(layout_of(32, w=16, pp=2), 8, spec=SPEC)]
    # The last stage stores most: the head and 2 layers, 90,112 values cut 8 or 16 ways, and 320 of norms;
    # 2 bytes each.
    shares = "each rank stores 1/16 of the weights instead of 1/32 (23.2 kB instead of 11.9 kB)"
    assert any(shares in text for text in texts)


def test_fewer_weight_shards_say_what_they_cost() -> None:
    layout = layout_of(16, w=16)
    (only,) = find(layout, 8, spec=SPEC, shape=StepShape(1, 4, 64, 4))
    assert only.settings == {"tensor_parallel_num_weight_shards": 8}
    assert (only.before.num_lanes, only.after.num_lanes) == (16, 16)
    assert (only.before.crossing, only.after.crossing) == ((0, 1), (0, 0))
    before, after = (ModelPlan.build(SPEC, cut).parameter_bytes(4) for cut in (layout, only.layout))
    assert (only.before.parameter_bytes, only.after.parameter_bytes) == (before, after)
    assert after > before
    assert only.after.link_bytes is not None
    assert only.before.link_bytes is not None
    assert only.after.link_bytes < only.before.link_bytes
    assert "each rank stores 1/8 of the weights instead of 1/16 (" in only.text
    assert "leave a domain in a step; each rank" in only.text


def test_a_model_alone_gives_bytes_of_parameters() -> None:
    (only,) = find(layout_of(16, w=16), 8, spec=SPEC)
    assert only.after.parameter_bytes == ModelPlan.build(SPEC, only.layout).parameter_bytes(2)
    assert only.after.link_bytes is None


def test_a_smaller_tp_says_that_lanes_change() -> None:
    found = find(layout_of(16, tp=16), 8)
    (only,) = found
    assert only.settings == {"tensor_model_parallel_size": 8, "tensor_parallel_num_sequence_shards": 8}
    assert (only.before.num_lanes, only.after.num_lanes) == (1, 2)
    assert only.text == (
        "tensor_model_parallel_size 8, tensor_parallel_num_sequence_shards 8: 0 of 2 tp groups cross"
        " NVLink domains instead of 1 of 1; 8 of 8 gtp_remat groups cross NVLink domains instead of 0 of 16;"
        " 2 lanes instead of 1: global_batch_size has to be a multiple of 2 x micro_batch_size;"
        " a layer's activations are cut over 8 instead of 16 ranks"
    )


def test_a_step_whose_rows_the_lanes_do_not_divide_is_not_offered() -> None:
    layout = layout_of(16, tp=16)
    assert find(layout, 8, spec=SPEC, shape=StepShape(1, 3, 64, 4)) == ()
    (only,) = find(layout, 8, spec=SPEC, shape=StepShape(1, 4, 64, 4))
    assert only.after.num_lanes == 2


def test_a_tp_that_the_model_cannot_have_is_not_offered() -> None:
    layout = layout_of(32, tp=32)  # the model's 16 heads refuse this one already
    (only,) = find(layout, 8, spec=SPEC, shape=StepShape(1, 4, 64, 4))
    assert only.settings["tensor_model_parallel_size"] == 8
    assert only.before.link_bytes is None
    one_head = ModelSpec.from_config({**MODEL, "num_attention_heads": 1, "num_key_value_heads": 1})
    (only,) = find(layout, 8, spec=one_head)
    assert only.settings["tensor_model_parallel_size"] == 1


def test_pipelines_are_priced_by_the_stage_that_stores_most() -> None:
    layout = GTPParallelLayout.resolve(
        world_size=32, tensor_parallel_num_weight_shards=16, pipeline_model_parallel_size=2
    )
    (only,) = find(layout, 8, spec=SPEC, shape=StepShape(1, 4, 64, 4))
    assert only.settings == {"tensor_parallel_num_weight_shards": 8}
    stored = (90112 // 16 + 320) * 4, (90112 // 8 + 320) * 4
    assert (only.before.parameter_bytes, only.after.parameter_bytes) == stored
    assert only.before.link_bytes is not None
    assert only.after.link_bytes is not None
    assert only.after.link_bytes < only.before.link_bytes


def crossing_ranks(case_groups: list[list[int]], size: int) -> int:
    return sum(len(group) for group in case_groups if len({rank // size for rank in group}) > 1)


def groups_of(layout: GTPParallelLayout) -> tuple[list[list[int]], list[list[int]]]:
    sizes = layout.axis_sizes
    case = Case(**sizes, order=layout.rank_order, offset=layout.rank_offset)
    return case.groups(("tp",)), case.groups(("gtp_batch", "gtp_seq"))


@settings(max_examples=80, deadline=None)
@given(case=CASES, size=st.sampled_from([2, 3, 4, 8]))
def test_each_is_better_and_keeps_what_it_promises(case: Case, size: int) -> None:
    layout = case.layout()
    old = tuple(crossing_ranks(groups, size) for groups in groups_of(layout))
    for alternative in (found := find(layout, size)):
        other = alternative.layout
        assert all(getattr(other, name) == getattr(layout, name) for name in (*KEPT, "rank_offset"))
        assert tuple(crossing_ranks(groups, size) for groups in groups_of(other)) < old
        assert alternative.after.num_lanes == other.batch_parallel_size
        assert ("lanes instead of" in alternative.text) == (
            layout.batch_parallel_size != other.batch_parallel_size
        )
        changed = {name for name, value in layout.__dict__.items() if getattr(other, name) != value}
        assert changed - {"sequence_parallel"} == set(alternative.settings)
        again = {name: getattr(layout, name) for name in layout.__dict__} | alternative.settings
        assert GTPParallelLayout.resolve(**again) == other
    assert len(found) <= 3
    assert len({alternative.layout for alternative in found}) == len(found)
