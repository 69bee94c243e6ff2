"""Which pipeline stage holds a parameter: against a count by hand."""

from __future__ import annotations

import doctest

import pytest

from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelPlan, ModelSpec, stages
from rankloom.plan.stages import layer_of, parameter_stages, stage_layers

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}


def held(num_stages: int, **changes: object) -> dict[str, tuple[int, ...]]:
    layout = GTPParallelLayout.resolve(world_size=num_stages, pipeline_model_parallel_size=num_stages)
    return parameter_stages(ModelPlan.build(ModelSpec.from_config(CONFIG | changes), layout))


def test_embedding_first_layers_in_stretches_norm_and_head_last() -> None:
    found = held(3)
    assert found["model.embed_tokens.weight"] == (0,)
    assert found["model.norm.weight"] == found["lm_head.weight"] == (2,)
    for layer, stage in enumerate((0, 0, 1, 1, 2, 2)):
        assert found[f"model.layers.{layer}.self_attn.q_proj.weight"] == (stage,)
        assert found[f"model.layers.{layer}.input_layernorm.weight"] == (stage,)
    assert len(found) == 6 * 9 + 3


def test_a_tied_embedding_is_on_both_ends() -> None:
    found = held(3, tie_word_embeddings=True)
    assert found["model.embed_tokens.weight"] == (0, 2)
    assert "lm_head.weight" not in found
    assert held(1, tie_word_embeddings=True)["model.embed_tokens.weight"] == (0,)


def test_without_stages_everything_is_in_the_first() -> None:
    assert set(held(1).values()) == {(0,)}


@pytest.mark.parametrize("num_layers", range(1, 14))
@pytest.mark.parametrize("num_stages", range(1, 9))
def test_stretches_are_those_of_the_formula(num_layers: int, num_stages: int) -> None:
    found = stage_layers(num_layers, num_stages)
    assert len(found) == num_stages
    for stage, layers in enumerate(found):
        assert list(layers) == [i for i in range(num_layers) if i * num_stages // num_layers == stage]


def test_the_layer_of_a_name() -> None:
    assert layer_of("model.layers.12.mlp.up_proj.weight") == 12
    assert layer_of("model.norm.weight") is None


def test_examples() -> None:
    outcome = doctest.testmod(stages)
    assert (outcome.attempted, outcome.failed) == (1, 0)
