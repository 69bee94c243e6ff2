"""The keys a ``config.json`` of a family has, as data, and what to say about one that is none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from rankloom.errors import UserError
from rankloom.plan.families import family_of

__all__ = ["COMMON_FIELDS", "FAMILY_FIELDS", "ROPE_FIELDS", "refuse_unknown_fields"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of transformers' PreTrainedConfig.
COMMON_FIELDS = _names(
    """transformers_version architectures output_hidden_states return_dict dtype chunk_size_feed_forward
    is_encoder_decoder id2label label2id problem_type"""
)
# What its constructor takes beside its fields, as older files have it.
OTHER_FIELDS = _names(
    "model_type torch_dtype _name_or_path num_labels output_attentions rope_theta rope_scaling"
)
_EVERY_FAMILY = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads hidden_act max_position_embeddings initializer_range rms_norm_eps use_cache
    pad_token_id bos_token_id eos_token_id tie_word_embeddings rope_parameters attention_dropout"""
_QWEN = "use_sliding_window sliding_window max_window_layers layer_types"

# Fields of the configuration class of each family.
FAMILY_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "llama": _names(f"{_EVERY_FAMILY} head_dim pretraining_tp attention_bias mlp_bias"),
        "qwen2": _names(f"{_EVERY_FAMILY} {_QWEN}"),
        "qwen3": _names(f"{_EVERY_FAMILY} {_QWEN} head_dim attention_bias"),
        "mistral": _names(f"{_EVERY_FAMILY} head_dim sliding_window"),
    }
)
# No field of the class, but the model reads it.
_READ_BY_THE_MODEL: Mapping[str, frozenset[str]] = MappingProxyType({"qwen2": frozenset({"head_dim"})})

# Numbers that a rope type must have, beside those it may have.
ROPE_FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        "default": (frozenset(), frozenset()),
        "linear": (frozenset({"factor"}), frozenset()),
        "yarn": (
            frozenset({"factor"}),
            _names(
                """original_max_position_embeddings attention_factor beta_fast beta_slow mscale
                mscale_all_dim truncate"""
            ),
        ),
        "llama3": (
            frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
            frozenset({"original_max_position_embeddings"}),
        ),
    }
)
# The same things in other programs.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("num_layers", "n_layers", "n_layer"), "num_hidden_layers"),
        **dict.fromkeys(("d_model", "n_embd", "dim"), "hidden_size"),
        **dict.fromkeys(("ffn_hidden_size", "d_ff"), "intermediate_size"),
        **dict.fromkeys(("num_heads", "n_heads", "n_head"), "num_attention_heads"),
        **dict.fromkeys(("num_query_groups", "num_kv_heads", "n_kv_heads"), "num_key_value_heads"),
        **dict.fromkeys(("max_seq_len", "max_seq_length", "seq_length"), "max_position_embeddings"),
        **dict.fromkeys(("norm_eps", "layernorm_epsilon", "norm_epsilon"), "rms_norm_eps"),
        "init_method_std": "initializer_range",
        "rotary_base": "rope_theta",
    }
)
_EVERY_ROPE = frozenset({"rope_type", "type", "rope_theta"})


MOST_TOLD = 20  # unknown keys


def refuse_unknown_fields(config: Mapping[str, object], *, prefix: str = "model.config") -> None:
    """Raises UserError for keys that the family's config does not have, one a line, with the nearest known.

    Such a key would be kept by transformers and have no effect. ``prefix``: what the user knows
    ``config`` as.
    """
    family = family_of(config).name
    near = (
        FAMILY_FIELDS[family] | _READ_BY_THE_MODEL.get(family, frozenset()) | {"rope_theta", "rope_scaling"}
    )
    given = [str(key) for key in config if key not in COMMON_FIELDS | OTHER_FIELDS]
    lines = list(_unknown(given, near, prefix=prefix, what=f"a {family} config"))
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, Mapping):
            lines += _unknown_of_rope(rope, prefix=f"{prefix}.{name}")
    if lines:
        raise UserError("\n".join(lines))


def _unknown_of_rope(rope: Mapping[str, object], *, prefix: str) -> Iterator[str]:
    rope_type = str(rope.get("rope_type") or rope.get("type") or "default")
    if rope_type in ROPE_FIELDS:  # another type is refused as a value
        known = frozenset.union(_EVERY_ROPE, *ROPE_FIELDS[rope_type])
        yield from _unknown(map(str, rope), known, prefix=prefix, what=f"rope_type {rope_type}")


def _unknown(keys: Iterable[str], known: frozenset[str], *, prefix: str, what: str) -> Iterator[str]:
    wrong = [key for key in keys if key not in known]
    for key in wrong[:MOST_TOLD]:
        close = [ELSEWHERE[key]] if key in ELSEWHERE else get_close_matches(key, sorted(known), n=1)
        near = f"did you mean {close[0]}?" if close else f"its keys: {', '.join(sorted(known))}"
        yield f"{prefix}.{key} is not a key of {what}; {near}"
    if len(wrong) > MOST_TOLD:
        yield f"{len(wrong) - MOST_TOLD} more keys of {prefix} are not keys of {what}"
