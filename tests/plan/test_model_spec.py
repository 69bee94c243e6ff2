"""The parameters computed from a config.json alone against the meta-device model that transformers builds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rankloom.errors import UserError
from rankloom.plan import ModelSpec, ParameterSpec, Role

SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}
CONFIGS = {
    "llama": {"model_type": "llama", **SMALL},
    "llama, tied": {"model_type": "llama", **SMALL, "tie_word_embeddings": True},
    "llama, biases": {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
    "llama, head_dim": {"model_type": "llama", **SMALL, "head_dim": 16},
    "llama, nulls": {"model_type": "llama", **SMALL, "head_dim": None, "num_key_value_heads": None},
    "qwen2": {"model_type": "qwen2", **SMALL},
    "qwen2, tied": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    "qwen2, head_dim": {"model_type": "qwen2", **SMALL, "head_dim": 16},
    "qwen2, ignored keys": {"model_type": "qwen2", **SMALL, "attention_bias": True, "mlp_bias": True},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 16},
    "qwen3, bias, tied": {
        "model_type": "qwen3",
        **SMALL,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", **SMALL},
    "mistral, head_dim": {"model_type": "mistral", **SMALL, "head_dim": 16, "tie_word_embeddings": True},
    # Nothing but the layer count, which only keeps the test short: every size is a class default.
    "llama, defaults": {"model_type": "llama", "num_hidden_layers": 1},
    "qwen2, defaults": {"model_type": "qwen2", "num_hidden_layers": 1},
    "qwen3, defaults": {"model_type": "qwen3", "num_hidden_layers": 1},
    "mistral, defaults": {"model_type": "mistral", "num_hidden_layers": 1},
}
STYLES = {
    "colwise": {"weight": Role.COLUMN, "bias": Role.COLUMN_BIAS},
    "rowwise": {"weight": Role.ROW, "bias": Role.ROW_BIAS},
    "colwise_gather_output": {"weight": Role.HEAD},
    "embedding_rowwise": {"weight": Role.EMBEDDING},
    "replicated_with_grad_allreduce": {"weight": Role.HEAD_NORM},
}
ALL_CONFIGS = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def meta_model(config: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    keywords = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **keywords))


@ALL_CONFIGS
def test_names_shapes_and_order_are_those_of_the_model(config: dict[str, Any]) -> None:
    spec, model = ModelSpec.from_config(config), meta_model(config)
    assert [(p.name, p.shape) for p in spec.parameters] == [
        (name, tuple(parameter.shape)) for name, parameter in model.named_parameters()
    ]
    assert spec.num_parameters == sum(p.numel() for p in model.parameters())
    assert spec.tie_word_embeddings == ("lm_head.weight" not in dict(model.named_parameters()))


@ALL_CONFIGS
def test_roles_follow_the_models_own_tensor_parallel_plan(config: dict[str, Any]) -> None:
    plan = meta_model(config).tp_plan
    for parameter in ModelSpec.from_config(config).parameters:
        module, kind = parameter.name.rsplit(".", 1)
        style = plan.get(re.sub(r"\.\d+\.", ".*.", module))
        expected = STYLES[style][kind] if style else Role.NORM  # a norm is in no plan: replicated
        assert parameter.role is expected, parameter.name


def test_every_module_of_the_tensor_parallel_plan_is_in_the_spec() -> None:
    config = CONFIGS["qwen3"]
    modules = {
        re.sub(r"\.\d+\.", ".*.", p.name).rsplit(".", 1)[0] for p in ModelSpec.from_config(config).parameters
    }
    assert set(meta_model(config).tp_plan) <= modules


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_sizes_of_an_almost_empty_config_are_those_of_transformers(family: str) -> None:
    from transformers import AutoConfig

    theirs, ours = AutoConfig.for_model(family), ModelSpec.from_config({"model_type": family})
    assert ours.num_layers == theirs.num_hidden_layers
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.vocab_size, ours.tie_word_embeddings) == (theirs.vocab_size, theirs.tie_word_embeddings)
    default_head_dim = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == getattr(theirs, "head_dim", default_head_dim)


def test_the_saved_config_of_a_model_gives_the_same_spec(tmp_path: Any) -> None:
    import json

    config = CONFIGS["qwen3, bias, tied"]
    model = meta_model(config)
    model.config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert ModelSpec.from_config(saved) == ModelSpec.from_config(config)


def test_gather_units() -> None:
    spec = ModelSpec.from_config(CONFIGS["llama, biases"])
    units: dict[str, list[ParameterSpec]] = {}
    for parameter in spec.parameters:
        units.setdefault(parameter.unit, []).append(parameter)
    assert list(units) == ["model.embed_tokens", "model.layers.0", "small", "model.layers.1", "lm_head"]
    assert len(units["model.layers.0"]) == len(units["model.layers.1"]) == 7
    assert all(len(p.shape) == 1 for p in units["small"])
    assert all(len(p.shape) == 2 for name, unit in units.items() if name != "small" for p in unit)


def test_vocab_size_of_the_tokenizer_fills_a_missing_one_only() -> None:
    config = {key: value for key, value in CONFIGS["llama"].items() if key != "vocab_size"}
    assert ModelSpec.from_config(config, vocab_size=77).vocab_size == 77
    assert ModelSpec.from_config({**config, "vocab_size": None}, vocab_size=77).vocab_size == 77
    assert ModelSpec.from_config(CONFIGS["llama"], vocab_size=77).vocab_size == 101


def spec_with(**changes: object) -> ModelSpec:
    return ModelSpec.from_config({"model_type": "llama", **SMALL, **changes})


def refusal_of_tp(spec: ModelSpec, tp: int) -> str:
    with pytest.raises(UserError) as refused:
        spec.refuse_tensor_parallel(tp)
    return str(refused.value)


def test_tp_must_divide_heads_and_key_value_heads() -> None:
    spec = spec_with(hidden_size=64, num_attention_heads=32, num_key_value_heads=2)
    message = refusal_of_tp(spec, 4)
    assert message == (
        "tensor_model_parallel_size 4 does not divide num_key_value_heads 2 of the model; allowed: 1, 2"
    )
    spec.refuse_tensor_parallel(2)

    ten = spec_with(hidden_size=80, num_attention_heads=40, num_key_value_heads=10)
    assert refusal_of_tp(ten, 4).endswith("num_key_value_heads 10 of the model; allowed: 1, 2, 5, 10")


def test_tp_must_divide_the_width_of_one_projection() -> None:
    # gate and up together are 6 wide, which 2 divides; each of them is 3 wide.
    assert "intermediate_size 3 of the model; allowed: 1" in refusal_of_tp(spec_with(intermediate_size=3), 2)


def test_tp_need_not_divide_the_vocabulary() -> None:
    spec_with(vocab_size=101).refuse_tensor_parallel(2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_size": 64}, "no model_type; supported: llama, qwen2, qwen3, mistral"),
        ({"model_type": "llama", "attention_dropout": 0.1}, "attention_dropout 0.1"),
        ({"model_type": "llama", "resid_pdrop": 0.1}, "resid_pdrop 0.1"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantization_config"),
        (
            {"model_type": "llama", "hidden_size": "64"},
            "hidden_size of the model's config must be an integer",
        ),
        ({"model_type": "llama", "hidden_size": None}, "at least 1, not None"),
        ({"model_type": "llama", "num_hidden_layers": True}, "not True"),
        ({"model_type": "qwen3", "head_dim": None}, "head_dim of the model's config"),
        ({"model_type": "llama", "tie_word_embeddings": None}, "must be true or false, not None"),
        (
            {"model_type": "qwen2", "num_attention_heads": 6, "num_key_value_heads": 4},
            "num_attention_heads 6 of the model's config is not a multiple of num_key_value_heads 4; "
            "try num_key_value_heads 3 or 6",
        ),
        (
            {"model_type": "llama", "hidden_size": 33, "num_attention_heads": 4},
            "hidden_size 33 of the model's config is not a multiple of num_attention_heads 4; try 32 or 40",
        ),
        (
            {"model_type": "llama", "hidden_size": 33, "num_attention_heads": 4, "head_dim": 8},
            "num_attention_heads 4; try 32 or 36",
        ),
        ({"model_type": "llama", "hidden_size": 4}, "less than num_attention_heads 32; try 64 or more"),
        (
            {"model_type": "mistral", "hidden_size": 28, "num_attention_heads": 4, "num_key_value_heads": 4},
            "head_dim 7 = hidden_size 28 / num_attention_heads 4 of the model's config is odd, and rotary "
            "positions turn pairs of numbers; try hidden_size 24 or 32",
        ),
        ({"model_type": "qwen3", "head_dim": 7}, "head_dim 7 of the model's config is odd"),
        ({"model_type": "qwen3", "head_dim": 1}, "try 2"),
    ],
)
def test_refusals(config: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as refused:
        ModelSpec.from_config(config)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_dropout_of_zero_is_fine() -> None:
    spec_with(attention_dropout=0.0, quantization_config=None)
