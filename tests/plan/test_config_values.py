"""Values of a model's config that are refused, and that transformers agrees."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.errors import UserError
from rankloom.plan import ModelSpec
from rankloom.plan.config_values import HIDDEN_ACTS

SMALL = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}
ROPE = "default, linear, yarn, llama3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": "abc"}, "rms_norm_eps of the model's config must be a number with a point"),
        ({"initializer_range": 0}, "from 0.0 to 1.0, not 0"),  # transformers takes no integer
        ({"rms_norm_eps": True}, "must be a number with a point, greater than 0.0, not True"),
        ({"initializer_range": -0.1}, "a number with a point, from 0.0 to 1.0, not -0.1"),
        ({"initializer_range": float("nan")}, "from 0.0 to 1.0, not nan"),
        ({"attention_dropout": "0.1"}, "attention_dropout of the model's config must be the number 0, not"),
        ({"hidden_act": "silly"}, "hidden_act of the model's config must be one of gelu, "),
        ({"hidden_act": "prelu"}, "must be one of gelu, "),  # it has parameters
        ({"rope_theta": 0}, "rope_theta of the model's config must be a number greater than 0, not 0"),
        ({"max_position_embeddings": 2.5}, "must be an integer of at least 1, not 2.5"),
        ({"eos_token_id": [1, "a"]}, "must be an integer of at least 0, or a list of them"),
        ({"use_sliding_window": 1}, "must be true or false, not 1"),
        ({"return_dict": False}, "return_dict of the model's config must be true, not False"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor of the model's config must be 1"),
        ({"per_layer_config": {0: {"hidden_size": 8}}}, "layers that differ are not supported"),
        ({"layer_types": ["full_attention", "mamba"]}, "a list of full_attention and sliding_attention"),
        ({"layer_types": ["full_attention"]}, "has 1 entries, but num_hidden_layers is 2"),
        ({"rope_scaling": 2.0}, "rope_scaling of the model's config must be a mapping, not 2.0"),
        (
            {"rope_parameters": {"rope_type": "liner", "factor": 2.0}},
            f"rope_type in rope_parameters of the model's config must be one of {ROPE}, not 'liner'",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type dynamic in rope_scaling of the model's config depends on the longest sequence a rank "
            f"sees, which differs between layouts; supported: {ROPE}",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type longrope in rope_parameters"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_type linear needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "high_freq_factor and low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor of rope_scaling of the"),
    ],
)  # fmt: skip
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        ModelSpec.from_config({**SMALL, **changes})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 1e-5, "initializer_range": 0.0, "attention_dropout": 0, "rope_theta": 500},
        {"rope_scaling": None, "quantization_config": None, "sliding_window": None, "eos_token_id": [1, 2]},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "truncate": False}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 4}},
        {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True},
    ],
)  # fmt: skip
def test_what_is_not_refused_makes_a_model(changes: dict[str, Any]) -> None:
    from transformers import AutoConfig

    ModelSpec.from_config({**SMALL, **changes})
    AutoConfig.for_model(**{**SMALL, **{k: v for k, v in changes.items() if v is not None}})


def test_activations_are_those_of_transformers_without_parameters() -> None:
    from transformers.activations import ACT2CLS, ACT2FN

    plain = {name for name in ACT2CLS if not list(ACT2FN[name].parameters())}
    assert sorted(plain) == list(HIDDEN_ACTS)
