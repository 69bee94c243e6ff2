"""What the supported Hugging Face families have in common and where they differ, as data.

The class defaults are those of transformers' configuration classes, for what a ``config.json`` leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rankloom.errors import UserError

__all__ = ["FAMILIES", "Family", "family_of"]


@dataclass(frozen=True)
class Family:
    """One ``model_type``: its class defaults, and which parameters exist beside the seven linears of a layer.

    A bias field is True, False, or the name of the config key (a bool) that decides it.
    """

    name: str
    defaults: Mapping[str, object]
    nullable: frozenset[str]  # keys that may be null in config.json and then take their derived value
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_norms: bool = False
    hidden_divides_by_heads: bool = (
        False  # the configuration class refuses other sizes, head_dim given or not
    )


def _defaults(**changes: object) -> Mapping[str, object]:
    common: dict[str, object] = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": None,  # None: hidden_size // num_attention_heads
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    return MappingProxyType(common | changes)


LLAMA = Family(
    name="llama",
    defaults=_defaults(vocab_size=32000, intermediate_size=11008, num_key_value_heads=None),
    nullable=frozenset({"num_key_value_heads", "head_dim"}),
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    hidden_divides_by_heads=True,
)
QWEN2 = Family(
    name="qwen2",
    defaults=_defaults(vocab_size=151936, intermediate_size=22016, num_key_value_heads=32),
    nullable=frozenset({"num_key_value_heads"}),
    qkv_bias=True,
)
QWEN3 = Family(
    name="qwen3",
    defaults=_defaults(vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, head_dim=128),
    nullable=frozenset({"num_key_value_heads"}),
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    head_norms=True,
)
MISTRAL = Family(
    name="mistral",
    defaults=_defaults(vocab_size=32000, intermediate_size=14336, num_key_value_heads=8),
    nullable=frozenset({"head_dim"}),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({f.name: f for f in (LLAMA, QWEN2, QWEN3, MISTRAL)})


def family_of(config: Mapping[str, object]) -> Family:
    """The family of a ``config.json``. Raises UserError for any other, by name."""
    model_type = config.get("model_type")
    if model_type is None:
        raise UserError(f"the model's config has no model_type; supported: {', '.join(FAMILIES)}")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(
            f"model_type {model_type!r} is not supported: its parameters have no known place in the layout; "
            f"supported: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
