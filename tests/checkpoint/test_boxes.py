"""Flat ranges as boxes, against brute force; and every element of a model written by exactly one rank."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.checkpoint.boxes import flat_boxes, inside, intersection, written_boxes
from rankloom.layout import GTPParallelLayout
from rankloom.plan import Box, ModelPlan, ModelSpec


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Box, tuple[int, ...], int, int]:
    """A shard somewhere in a parameter of this shape, and a range of its elements and of some padding rows
    after them."""
    dims = draw(st.integers(1, 2))
    starts = tuple(draw(st.integers(0, 4)) for _ in range(dims))
    sizes = tuple(draw(st.integers(1, 7)) for _ in range(dims))
    stops = tuple(a + n for a, n in zip(starts, sizes, strict=True))
    numel = int(np.prod(sizes)) + draw(st.integers(0, 2)) * sizes[-1] * (dims == 2)
    low = draw(st.integers(0, numel))
    high = draw(st.integers(low, numel))
    return Box(starts, stops), tuple(n + 3 for n in stops), low, high


@given(case=ranges())
@settings(max_examples=400, deadline=None)
def test_a_flat_range_is_at_most_three_boxes_of_the_same_elements(
    case: tuple[Box, tuple[int, ...], int, int],
) -> None:
    shard, shape, start, stop = case
    parameter = numbered(shape)
    whole = Box((0,) * len(shape), shape)
    shard_elements = parameter[inside(shard, whole)].reshape(-1)
    boxes = flat_boxes(shard, start, stop)
    assert len(boxes) <= (3 if len(shape) == 2 else 1)
    flat = np.full(max(0, min(stop, shard.num_elements) - start), -1)
    for one in boxes:
        assert one.box.num_elements > 0
        values = parameter[inside(one.box, whole)]
        assert (flat[one.offset : one.offset + values.size] == -1).all()
        flat[one.offset : one.offset + values.size] = values.reshape(-1)
    assert flat.tolist() == shard_elements[start:stop].tolist()


BOXES = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)).map(
    lambda t: Box((t[0], t[1]), (t[0] + t[2], t[1] + t[3]))
)


@given(a=BOXES, b=BOXES)
@settings(max_examples=300, deadline=None)
def test_an_intersection_holds_the_elements_of_both(a: Box, b: Box) -> None:
    whole = Box((0, 0), (10, 10))
    marks = np.zeros((10, 10), dtype=int)
    marks[inside(a, whole)] += 1
    marks[inside(b, whole)] += 1
    both = intersection(a, b)
    if both is None:
        assert not (marks == 2).any()
    else:
        marks[inside(both, whole)] += 1
        assert both.num_elements == (marks == 3).sum() > 0
        assert not (marks == 2).any()


def test_the_example_of_three_boxes() -> None:
    boxes = flat_boxes(Box((10, 0), (14, 5)), 8, 17)
    assert [(b.box.starts, b.box.stops, b.offset) for b in boxes] == [
        ((11, 3), (12, 5), 0),
        ((12, 0), (13, 5), 2),
        ((13, 0), (14, 2), 7),
    ]


@st.composite
def plans(draw: st.DrawFn) -> ModelPlan:
    tp = draw(st.sampled_from([1, 2, 4]))
    seq = tp > 1 and draw(st.booleans())
    gtp_seq, gtp_batch, cp, dp = (draw(st.integers(1, 3)) for _ in range(4))
    gtp_seq = gtp_seq if tp == 1 or seq else 1
    config = {
        "model_type": draw(st.sampled_from(["llama", "qwen2", "qwen3", "mistral"])),
        "hidden_size": draw(st.sampled_from([8, 12, 20])),
        "intermediate_size": 12,
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 6,
        "attention_bias": draw(st.booleans()),
        "vocab_size": draw(st.sampled_from([16, 17, 101, 103, 64])),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if config["model_type"] in ("llama", "qwen2"):
        del config["head_dim"]
        config["hidden_size"] = 8
    layout = GTPParallelLayout.resolve(
        world_size=tp * gtp_seq * gtp_batch * cp * dp,
        tensor_model_parallel_size=tp,
        tensor_parallel_num_weight_shards=tp * gtp_seq * gtp_batch,
        tensor_parallel_num_sequence_shards=gtp_seq * (tp if seq else 1),
        context_parallel_size=cp,
        sequence_parallel=seq,
        rank_order=draw(st.sampled_from(["tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp"])),
        rank_offset=draw(st.sampled_from([0, 5])),
    )
    return ModelPlan.build(ModelSpec.from_config(config), layout)


def writers(plan: ModelPlan) -> dict[str, np.ndarray]:
    """How many ranks write each element."""
    counts = {p.name: np.zeros(p.shape, dtype=int) for p in plan.spec.parameters}
    for rank in plan.layout.ranks:
        for name, flat in written_boxes(plan, rank):
            shape = counts[name].shape
            counts[name][inside(flat.box, Box((0,) * len(shape), shape))] += 1
    return counts


@given(plan=plans())
@settings(max_examples=80, deadline=None)
def test_every_element_is_written_by_exactly_one_rank(plan: ModelPlan) -> None:
    for name, count in writers(plan).items():
        assert (count == 1).all(), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_cut_vocabulary_of_101_has_101_rows_and_a_tied_pair_one_tensor(tied: bool) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 101,
        "tie_word_embeddings": tied,
    }
    layout = GTPParallelLayout.resolve(
        world_size=8, tensor_model_parallel_size=2, tensor_parallel_num_weight_shards=8
    )
    plan = ModelPlan.build(ModelSpec.from_config(config), layout)
    rows: dict[str, set[int]] = defaultdict(set)
    for rank in layout.ranks:
        for name, flat in written_boxes(plan, rank):
            rows[name] |= set(range(flat.box.starts[0], flat.box.stops[0]))
    assert rows["model.embed_tokens.weight"] == set(range(101))
    assert ("lm_head.weight" in rows) is not tied
