"""Values of a ``config.json`` that make no model, or one that depends on the layout: refused by key.

Sizes and their relations are read and checked where the parameters are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rankloom.errors import UserError
from rankloom.plan.config_fields import ROPE_FIELDS

__all__ = ["HIDDEN_ACTS", "refuse_values"]

# transformers' activations without parameters of their own.
HIDDEN_ACTS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
)
LAYER_TYPES = ("full_attention", "sliding_attention")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(lowest: float, highest: float = float("inf"), *, above: bool = False) -> Callable[[object], bool]:
    """Whether a value is a number from ``lowest`` (or ``above`` it) to ``highest``; infinity is none."""

    def holds(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or value == float("inf"):
            return False
        return (lowest < value if above else lowest <= value) and value <= highest

    return holds


def _float(lowest: float, highest: float = float("inf"), *, above: bool = False) -> Callable[[object], bool]:
    """The same for a value that transformers wants as a float: 1 is none."""
    holds = _number(lowest, highest, above=above)
    return lambda value: isinstance(value, float) and holds(value)


def _integer(lowest: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def _is_token_id(value: object) -> bool:
    return _integer(0)(value)


def _are_token_ids(value: object) -> bool:
    return _is_token_id(value) or (isinstance(value, list) and all(map(_is_token_id, value)))


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


# What a value that is neither absent nor null must be. A null is left to the family's class.
_POSITIVE = (_number(0, above=True), "a number greater than 0")
_COUNT = (_integer(1), "an integer of at least 1")
_FLAG = (_is_bool, "true or false")
_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        "rms_norm_eps": (_float(0, above=True), "a number with a point, greater than 0.0"),
        "initializer_range": (_float(0, 1), "a number with a point, from 0.0 to 1.0"),
        "rope_theta": _POSITIVE,
        "max_position_embeddings": _COUNT,
        "sliding_window": _COUNT,
        "max_window_layers": (_integer(0), "an integer of at least 0"),
        "pad_token_id": (lambda v: _integer(-1)(v), "an integer of at least 0"),  # -1: none, in old files
        "bos_token_id": (_is_token_id, "an integer of at least 0"),
        "eos_token_id": (_are_token_ids, "an integer of at least 0, or a list of them"),
        "use_cache": _FLAG,
        "use_sliding_window": _FLAG,
        "attention_bias": _FLAG,
        "mlp_bias": _FLAG,
        "return_dict": (lambda value: value is True, "true"),
        "hidden_act": (lambda value: value in HIDDEN_ACTS, f"one of {', '.join(HIDDEN_ACTS)}"),
        "partial_rotary_factor": (lambda value: value == 1, "1: these families turn whole heads"),
    }
)
_ROPE_NUMBERS: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        **dict.fromkeys(("rope_theta", "factor", "attention_factor"), _POSITIVE),
        **dict.fromkeys(("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"), _POSITIVE),
        **dict.fromkeys(("mscale", "mscale_all_dim"), (_is_number, "a number")),
        "factor": (_number(1), "a number of at least 1"),
        "original_max_position_embeddings": _COUNT,
        "truncate": _FLAG,
        "partial_rotary_factor": _RULES["partial_rotary_factor"],
    }
)


def refuse_values(config: Mapping[str, object]) -> None:
    """Raises UserError with key, value and what is allowed, for the first value that is not."""
    _refuse_dropout(config)
    if config.get("quantization_config") is not None:
        raise UserError(
            "the model's config has a quantization_config: quantized weights cannot be trained; "
            "use an unquantized model"
        )
    if config.get("per_layer_config"):
        raise UserError("per_layer_config of the model's config: layers that differ are not supported")
    _refuse_by(_RULES, config, of="the model's config")
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if rope is not None:
            _refuse_rope(name, rope)
    _refuse_layer_types(config)


def _refuse_by(
    rules: Mapping[str, tuple[Callable[[object], bool], str]], config: Mapping[str, object], *, of: str
) -> None:
    for key, (holds, allowed) in rules.items():
        value = config.get(key)
        if value is not None and not holds(value):
            raise UserError(f"{key} of {of} must be {allowed}, not {value!r}")


def _refuse_dropout(config: Mapping[str, object]) -> None:
    for key, value in config.items():
        if value is None or not ("dropout" in key or key.endswith("_pdrop")):
            continue
        if not _is_number(value):
            raise UserError(f"{key} of the model's config must be the number 0, not {value!r}")
        if value != 0:
            raise UserError(
                f"{key} {value} of the model's config: training with dropout is not supported, because every "
                f"layout must give the same numbers; set it to 0"
            )


def _refuse_rope(name: str, rope: object) -> None:
    of = f"{name} of the model's config"
    if not isinstance(rope, Mapping):
        raise UserError(f"{of} must be a mapping, not {rope!r}")
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type in ("dynamic", "longrope"):
        raise UserError(
            f"rope_type {rope_type} in {of} depends on the longest sequence a rank sees, which differs "
            f"between layouts; supported: {', '.join(ROPE_FIELDS)}"
        )
    if not isinstance(rope_type, str) or rope_type not in ROPE_FIELDS:
        raise UserError(f"rope_type in {of} must be one of {', '.join(ROPE_FIELDS)}, not {rope_type!r}")
    required, _ = ROPE_FIELDS[rope_type]
    missing = sorted(key for key in required if rope.get(key) is None)
    if missing:
        raise UserError(f"{of}: rope_type {rope_type} needs {' and '.join(missing)}")
    _refuse_by(_ROPE_NUMBERS, rope, of=of)


def _refuse_layer_types(config: Mapping[str, object]) -> None:
    types, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if types is None:
        return
    if not isinstance(types, list) or any(entry not in LAYER_TYPES for entry in types):
        raise UserError(
            f"layer_types of the model's config must be a list of {' and '.join(LAYER_TYPES)}, not {types!r}"
        )
    if isinstance(layers, int) and len(types) != layers:
        raise UserError(
            f"layer_types of the model's config has {len(types)} entries, but num_hidden_layers is {layers}"
        )
