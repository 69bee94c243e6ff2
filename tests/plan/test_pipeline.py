"""What the stages of a pipeline store and send in a step, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.layout import GTPParallelLayout
from rankloom.plan import CollectiveRecord, ModelPlan, ModelSpec, StepShape, bytes_by_group, step_collectives
from rankloom.plan.memory import memory_parts
from rankloom.plan.stages import most_parameter_bytes, stage_plans

# A layer: 4 x 64 x 64 + 3 x 128 x 64 = 40,960 values of weights and 2 x 64 of norms.
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
LAYER, EMBEDDING, NORM = 40960, 128 * 64, 64
SHAPE = StepShape(micro_batch_size=1, num_microbatches=3, sequence_length=32, element_size=2)


def plan_of(world_size: int, *, tied: bool = False, **settings: Any) -> ModelPlan:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    return ModelPlan.build(ModelSpec.from_config({**MODEL, "tie_word_embeddings": tied}), layout)


def counts(records: tuple[CollectiveRecord, ...], stage: int, kind: str, group: str) -> dict[str, int]:
    found = [r for r in records if (r.stage, r.kind, r.group) == (stage, kind, group)]
    assert len({r.what for r in found}) == len(found)
    return {r.what: r.count for r in found}


def test_a_stage_has_its_parameters_and_no_others() -> None:
    first, last = stage_plans(plan_of(4, pipeline_model_parallel_size=2, tensor_parallel_num_weight_shards=2))
    assert [unit.name for unit in first.weights] == ["model.embed_tokens", "model.layers.0", "model.layers.1"]
    assert [unit.name for unit in last.weights] == ["model.layers.2", "model.layers.3", "lm_head"]
    assert first.parameter_bytes(2) == ((EMBEDDING + 2 * LAYER) // 2 + 4 * NORM) * 2
    assert last.parameter_bytes(2) == ((EMBEDDING + 2 * LAYER) // 2 + 5 * NORM) * 2
    assert (first.spec.num_layers, first.is_first, first.is_last) == (2, True, False)
    assert (last.spec.num_layers, last.is_first, last.is_last) == (2, False, True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_together_hold_every_parameter(stages: int, tied: bool) -> None:
    plan = plan_of(stages, tied=tied, pipeline_model_parallel_size=stages)
    own = stage_plans(plan)
    held = [name for stage in own for name in stage.placements]
    twice = ["model.embed_tokens.weight"] * (tied and stages > 1)
    assert sorted(held) == sorted([*plan.placements, *twice])
    assert most_parameter_bytes(plan, 4) == max(stage.parameter_bytes(4) for stage in own)
    assert sum(stage.spec.num_layers for stage in own) == 4


def test_without_stages_nothing_is_different() -> None:
    plan = plan_of(4, tensor_parallel_num_weight_shards=2, context_parallel_size=2)
    assert stage_plans(plan) == (plan,)
    assert {record.stage for record in step_collectives(plan, SHAPE)} == {None}


def test_weights_are_gathered_for_the_forward_and_for_the_backward_of_a_stage() -> None:
    plan = plan_of(4, pipeline_model_parallel_size=2, tensor_parallel_num_weight_shards=2)
    records = step_collectives(plan, SHAPE)
    gathered = [counts(records, stage, "all_gather", "gtp_remat") for stage in (0, 1)]
    # 3 microbatches. The last stage goes straight on: of its two layers the second is kept meanwhile.
    assert gathered[0] == {
        "gather model.embed_tokens": 3,
        "gather model.layers.0": 6,
        "gather model.layers.1": 6,
    }
    assert gathered[1] == {"gather model.layers.2": 6, "gather model.layers.3": 3, "gather lm_head": 3}
    (layer,) = [r for r in records if r.what == "gather model.layers.0"]
    assert layer.bytes_sent == LAYER // 2 * 2  # a half, of 2 bytes a value, to one other rank
    reduced = counts(records, 0, "reduce_scatter", "gtp_remat")
    assert set(reduced.values()) == {3}


def test_ends_of_the_pipeline_have_the_embedding_and_the_loss() -> None:
    plan = plan_of(4, pipeline_model_parallel_size=2, tensor_model_parallel_size=2)
    records = step_collectives(plan, SHAPE)
    for stage in (0, 1):
        # Two layers of 4 gathers and 4 sums, and one end; 3 microbatches.
        assert counts(records, stage, "all_gather", "tp")["gather sequence"] == (2 * 4 + 1) * 3
        assert counts(records, stage, "reduce_scatter", "tp")["sum sequence"] == (2 * 4 + 1) * 3
    assert "loss over the vocabulary" not in counts(records, 0, "all_gather", "tp")
    assert counts(records, 1, "all_gather", "tp")["loss over the vocabulary"] == 3


@pytest.mark.parametrize(("sequence_parallel", "parts"), [(True, 2), (False, 1)])
def test_stages_send_activations_and_their_gradients(sequence_parallel: bool, parts: int) -> None:
    plan = plan_of(
        16,
        pipeline_model_parallel_size=4,
        tensor_model_parallel_size=2,
        sequence_parallel=sequence_parallel,
        context_parallel_size=2,
    )
    sends = [r for r in step_collectives(plan, SHAPE) if r.kind == "send"]
    steps = [(r.what, r.stage, r.to_stage) for r in sends]
    assert steps == [
        ("send activations", 0, 1),
        ("send their gradients", 1, 0),
        ("send activations", 1, 2),
        ("send their gradients", 2, 1),
        ("send activations", 2, 3),
        ("send their gradients", 3, 2),
    ]
    # 32 tokens over CP 2, and with sequence parallelism over TP 2; 64 values of 2 bytes.
    assert {(r.count, r.bytes_sent) for r in sends} == {(3, 32 // 2 // parts * 64 * 2)}


def test_both_ends_exchange_the_gradient_of_a_tied_embedding() -> None:
    plan = plan_of(4, tied=True, pipeline_model_parallel_size=4)
    found = [r for r in step_collectives(plan, SHAPE) if r.what == "exchange gradients of the embedding"]
    assert [(r.stage, r.to_stage, r.count, r.bytes_sent) for r in found] == [
        (0, 3, 1, EMBEDDING * 4),
        (3, 0, 1, EMBEDDING * 4),
    ]


def test_a_rank_sends_what_its_stage_does() -> None:
    plan = plan_of(4, pipeline_model_parallel_size=2, tensor_parallel_num_weight_shards=2)
    records = step_collectives(plan, SHAPE)
    first, last = (bytes_by_group(records, plan, rank)["gtp_remat"] for rank in (0, 3))
    embedding, layer = EMBEDDING // 2, LAYER // 2
    summed = 3 * (embedding + 2 * layer) * 4
    assert first == (3 * embedding + 12 * layer) * 2 + summed
    assert last == (3 * embedding + 9 * layer) * 2 + summed


def test_memory_is_that_of_a_stage() -> None:
    plan = plan_of(2, pipeline_model_parallel_size=2)
    parts = {part.what: part.num_bytes for part in memory_parts(stage_plans(plan)[1], element_size=2)}
    stored = EMBEDDING + 2 * LAYER + 5 * NORM
    assert parts == {
        "parameters": 2 * stored,
        "gradients": 4 * stored,
        "master weights": 4 * stored,
        "moments": 8 * stored,
    }
