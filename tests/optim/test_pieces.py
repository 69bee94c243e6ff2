"""How units are cut into pieces of optimizer state: every element has exactly one owner."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.layout import GTPParallelLayout
from rankloom.plan import FlatUnit, ModelPlan, ModelSpec, ParameterSpec, PieceRange, Role, place

SHAPES = st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 5)))


@given(shapes=st.lists(SHAPES, min_size=1, max_size=6), num_pieces=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_pieces_cover_every_element_of_a_unit_once(shapes: list[tuple[int, ...]], num_pieces: int) -> None:
    specs = [ParameterSpec(f"p{i}", shape, Role.NORM, "u") for i, shape in enumerate(shapes)]
    placements = [place(s, tp_size=1, gtp_size=1, sequence_parallel=False) for s in specs]
    unit = FlatUnit("u", tuple(placements), num_pieces)
    assert unit.numel <= unit.stored_numel < unit.numel + num_pieces
    owners: Counter[int] = Counter()
    by_parameter: Counter[str] = Counter()
    for index in range(num_pieces):
        for part in unit.piece(index):
            assert index * unit.piece_numel <= part.start < part.stop <= (index + 1) * unit.piece_numel
            offset = unit.offsets[part.placement.name]
            assert offset <= part.start
            assert part.stop <= offset + part.placement.shard_numel
            owners.update(range(part.start, part.stop))
            by_parameter[part.placement.name] += part.stop - part.start
    assert owners == Counter(range(unit.numel))
    assert by_parameter == {p.name: p.shard_numel for p in placements}


@st.composite
def plans(draw: st.DrawFn) -> ModelPlan:
    tp = draw(st.sampled_from([1, 2, 4]))
    gtp, cp, dp = (draw(st.integers(1, 3)) for _ in range(3))
    config = {
        "model_type": draw(st.sampled_from(["llama", "qwen2", "qwen3"])),
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 2,
        "vocab_size": draw(st.integers(16, 40)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    layout = GTPParallelLayout.resolve(
        world_size=tp * gtp * cp * dp,
        tensor_model_parallel_size=tp,
        tensor_parallel_num_weight_shards=tp * gtp,
        context_parallel_size=cp,
        sequence_parallel=draw(st.booleans()) if tp > 1 else False,
        rank_order=draw(st.sampled_from(["tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp"])),
    )
    return ModelPlan.build(ModelSpec.from_config(config), layout)


@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_every_logical_element_has_one_owner_over_all_ranks(plan: ModelPlan) -> None:
    """Small parameters that tp does not cut have one owner in every tp rank."""
    owned: Counter[str] = Counter()
    layout = plan.layout
    for rank in layout.ranks:
        at = layout.coords(rank)
        gtp = at.weight_shard
        for unit in plan.weights:
            for part in unit.piece(at.replica):
                owned[part.placement.name] += logical_elements(part, unit, at.tp, gtp)
        group = layout.weights.group_of(rank, "gtp_remat_replica")
        for part in plan.small.piece(group.index(rank)):
            if part.placement.tp_dim is not None or at.tp == 0:
                owned[part.placement.name] += part.stop - part.start
    sizes = {p.name: p.shape for p in plan.spec.parameters}
    assert owned == {name: count(shape) for name, shape in sizes.items()}


def count(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def logical_elements(part: PieceRange, unit: FlatUnit, tp: int, gtp: int) -> int:
    """Elements of a piece that are no padding: a shard's logical rows come first."""
    placement = part.placement
    offset = unit.offsets[placement.name]
    logical = offset + placement.box(tp, gtp).num_elements
    return max(0, min(part.stop, logical) - part.start)
