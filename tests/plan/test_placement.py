"""The boxes of a parameter's shards are a partition of it, whatever the shape and the cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan import Box, ModelPlan, ModelSpec, ParameterSpec, Placement, Role, place
from tests.optim.test_pieces import plans

CUT = [Role.EMBEDDING, Role.COLUMN, Role.ROW, Role.HEAD]
SMALL = [Role.COLUMN_BIAS, Role.ROW_BIAS, Role.NORM, Role.HEAD_NORM]


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    role = draw(st.sampled_from(CUT + SMALL))
    tp, gtp = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    shape = (
        (draw(st.integers(1, 40)),) if role in SMALL else (draw(st.integers(1, 40)), draw(st.integers(1, 9)))
    )
    spec = ParameterSpec("p", shape, role, "unit")
    return place(spec, tp_size=tp, gtp_size=gtp, sequence_parallel=draw(st.booleans()))


def paint(whole: np.ndarray, box: Box) -> None:
    whole[tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))] += 1


@given(p=placements())
@settings(max_examples=300, deadline=None)
def test_boxes_tile_the_logical_parameter_once(p: Placement) -> None:
    whole = np.zeros(p.spec.shape, dtype=int)
    for tp in range(p.tp_size if p.tp_dim is not None else 1):
        for shard in range(p.gtp_size):
            box = p.box(tp, shard)
            assert all(0 <= a <= b <= n for a, b, n in zip(box.starts, box.stops, p.spec.shape, strict=True))
            assert all(n <= room for n, room in zip(box.shape, p.shard_shape, strict=True))
            paint(whole, box)
    assert (whole == 1).all()


@given(p=placements())
@settings(max_examples=300, deadline=None)
def test_a_tp_local_weight_is_the_boxes_of_its_shards_one_after_the_other(p: Placement) -> None:
    for tp in range(p.tp_size):
        local, row = p.tp_box(tp), p.tp_box(tp).starts[0]
        for shard in range(p.gtp_size):
            box = p.box(tp, shard)
            assert box.starts[1:] == local.starts[1:]
            assert box.stops[1:] == local.stops[1:]
            assert box.starts[0] == row
            row = box.stops[0]
        assert row == local.stops[0]
        assert all(n <= room for n, room in zip(local.shape, p.tp_local_shape, strict=True))
    assert p.gathered_shape[0] == p.gtp_size * p.shard_shape[0]
    assert 0 <= p.gathered_shape[0] - p.tp_local_shape[0] < p.gtp_size


@given(p=placements())
@settings(max_examples=200, deadline=None)
def test_small_parameters_are_kept_whole_and_column_biases_cut_over_tp(p: Placement) -> None:
    assert p.sharded == (p.spec.role in CUT)
    if not p.sharded:
        assert p.gtp_size == 1
        cut = p.spec.role is Role.COLUMN_BIAS
        assert p.shard_shape == ((-(-p.spec.shape[0] // p.tp_size),) if cut else p.spec.shape)
        assert not (cut and p.grad_partial_over_tp)
    assert p.tp_size > 1 or not p.grad_partial_over_tp


def test_a_vocabulary_of_101_rows_over_tp_2_and_4_shards() -> None:
    spec = ParameterSpec("embed", (101, 6), Role.EMBEDDING, "unit")
    p = place(spec, tp_size=2, gtp_size=2, sequence_parallel=True)
    assert (p.tp_local_shape, p.gathered_shape, p.shard_shape) == ((51, 6), (52, 6), (26, 6))
    rows = [(p.box(tp, g).starts[0], p.box(tp, g).stops[0]) for tp in range(2) for g in range(2)]
    assert rows == [(0, 26), (26, 51), (51, 77), (77, 101)]


def test_a_layer_of_12_rows_over_4_shards_has_3_each_and_a_whole_bias() -> None:
    weight, bias = (
        place(ParameterSpec("p", shape, role, "unit"), tp_size=1, gtp_size=4, sequence_parallel=False)
        for shape, role in (((12, 8), Role.COLUMN), ((12,), Role.COLUMN_BIAS))
    )
    assert weight.shard_shape == (3, 8)
    assert bias.shard_shape == (12,)


@given(plan=plans(), element_size=st.sampled_from([2, 4]))
@settings(max_examples=60, deadline=None)
def test_parameter_bytes_are_what_the_units_store(plan: ModelPlan, element_size: int) -> None:
    stored = sum(u.stored_numel for u in plan.units)
    shards = sum(p.shard_numel for u in plan.units for p in u.placements)
    pieces = sum(u.num_pieces for u in plan.units)
    assert plan.parameter_bytes(element_size) == element_size * stored
    assert shards <= stored <= shards + pieces
    names = Counter(p.name for u in plan.units for p in u.placements)
    assert names == Counter(p.name for p in plan.spec.parameters)


def test_a_vocabulary_too_small_for_tp_is_refused() -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 9,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
    }
    layout = GTPParallelLayout.resolve(world_size=4, tensor_model_parallel_size=4)
    with pytest.raises(
        UserError, match=r"vocab_size 9 leaves the last of tensor_model_parallel_size 4 ranks"
    ):
        ModelPlan.build(ModelSpec.from_config(config), layout)
