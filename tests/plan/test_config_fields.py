"""The keys of a config against those of the installed configuration classes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rankloom.errors import UserError
from rankloom.plan import refuse_unknown_fields
from rankloom.plan.config_fields import COMMON_FIELDS, FAMILY_FIELDS, OTHER_FIELDS
from rankloom.plan.families import FAMILIES

FAMILY = pytest.mark.parametrize("family", FAMILIES)


@FAMILY
def test_fields_are_those_of_the_configuration_class(family: str) -> None:
    from transformers import AutoConfig, PreTrainedConfig

    common = {field.name for field in fields(PreTrainedConfig)}
    assert common == COMMON_FIELDS
    assert {field.name for field in fields(type(AutoConfig.for_model(family)))} - common == (
        FAMILY_FIELDS[family]
    )


@FAMILY
def test_what_transformers_saves_is_known(family: str) -> None:
    from transformers import AutoConfig

    refuse_unknown_fields(AutoConfig.for_model(family).to_dict())


@FAMILY
def test_every_known_key_passes(family: str) -> None:
    known = FAMILY_FIELDS[family] | COMMON_FIELDS | OTHER_FIELDS
    refuse_unknown_fields({**dict.fromkeys(known), "model_type": family})


def refusal(**config: object) -> str:
    with pytest.raises(UserError) as refused:
        refuse_unknown_fields({"model_type": "llama", **config})
    return str(refused.value)


def test_misspelt_keys_are_refused_with_the_nearest_one_a_line() -> None:
    assert refusal(hiden_size=8, hidden_size=8, num_layers=2, vocabsize=9).splitlines() == [
        "model.config.hiden_size is not a key of a llama config; did you mean hidden_size?",
        "model.config.num_layers is not a key of a llama config; did you mean num_hidden_layers?",
        "model.config.vocabsize is not a key of a llama config; did you mean vocab_size?",
    ]
    assert refusal(num_query_groups=2).endswith("did you mean num_key_value_heads?")
    assert "model.config.xyzzy is not a key of a llama config; its keys: attention_bias," in refusal(xyzzy=1)


def test_a_key_that_only_another_family_has() -> None:
    assert "sliding_window is not a key of a llama config" in refusal(sliding_window=8)
    refuse_unknown_fields({"model_type": "mistral", "sliding_window": 8})
    refuse_unknown_fields({"model_type": "qwen2", "head_dim": 8})  # no field there, but the model reads it


def test_keys_of_rope() -> None:
    assert refusal(rope_parameters={"rope_type": "linear", "factr": 2.0}) == (
        "model.config.rope_parameters.factr is not a key of rope_type linear; did you mean factor?"
    )
    assert "rope_scaling.beta_fast is not a key of rope_type llama3" in refusal(
        rope_scaling={"type": "llama3", "beta_fast": 2}
    )
