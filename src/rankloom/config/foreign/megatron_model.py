"""The model that Megatron-LM arguments describe, as a Hugging Face ``config.json``, where it is one we know.

Llama: RMSNorm, gated SiLU, rotary positions, no linear bias. Qwen2 has biases of q, k and v beside that,
Qwen3 norms of q and k heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankloom.config.findings import Finding
from rankloom.config.foreign.arguments import Arguments

__all__ = ["model_of"]

_SIZES = ("num-layers", "hidden-size", "num-attention-heads")
_READ = (
    *_SIZES,
    *("ffn-hidden-size", "num-query-groups", "kv-channels", "vocab-size", "padded-vocab-size"),
    *("make-vocab-size-divisible-by", "tensor-model-parallel-size", "max-position-embeddings"),
    *("rotary-base", "norm-epsilon", "rotary-percent", "rope-scaling-factor", "num-experts"),
)


def model_of(arguments: Arguments) -> tuple[dict[str, object] | None, tuple[Finding, ...]]:
    """(config, notes): None, with a note that says why, when the arguments describe no such model."""
    missing = [f"--{name}" for name in _SIZES if not arguments.has(name)]
    if len(missing) == len(_SIZES):
        return None, (
            _note("the job says no model: --num-layers and --hidden-size are not given; --model gives one"),
        )
    reasons = [f"{name} is not given" for name in missing]
    reasons += [f"{arguments.spell(name)} is not known" for name in arguments.unknown(*_READ)]
    reasons = reasons or list(_other_architecture(arguments))
    vocabulary, text = _vocabulary(arguments)
    if vocabulary is None and not reasons:
        reasons = [text]
    if reasons:
        return None, (
            _note(
                f"bytes are not computed from the arguments: {'; '.join(reasons)}; --model gives the model"
            ),
        )
    assert vocabulary is not None
    note = (_note(text),) if text else ()
    return _config(arguments, vocabulary), note


def _note(message: str) -> Finding:
    return Finding("note", "model", message)


def _other_architecture(a: Arguments) -> Iterator[str]:
    """What makes it another model than Llama, Qwen2 or Qwen3."""
    normalization = a.text("normalization") or "LayerNorm"
    if normalization != "RMSNorm":
        yield f"--normalization is {normalization}, not RMSNorm"
    if not a.on("swiglu"):
        yield "--swiglu is not given"
    if not a.on("disable-bias-linear"):
        yield "--disable-bias-linear is not given"
    position = "rope" if a.on("use-rotary-position-embeddings") else a.text("position-embedding-type")
    if position != "rope":
        yield f"--position-embedding-type is {position or 'learned_absolute'}, not rope"
    if a.integer("num-experts"):
        yield "experts are not modelled"
    for name in ("multi-latent-attention", "apply-layernorm-1p", "rotary-interleaved", "mtp-num-layers"):
        if a.has(name) and a.known[name].value not in (False, 0):
            yield f"--{name} is given"
    if (a.number("rotary-percent") or 1.0) != 1.0:
        yield "--rotary-percent is not 1.0"
    if a.on("qk-layernorm") and a.on("add-qkv-bias"):
        yield "--qk-layernorm and --add-qkv-bias are given together"
    hidden, heads = a.integer("hidden-size") or 0, a.integer("num-attention-heads") or 1
    if not a.on("qk-layernorm") and hidden % heads:
        yield "--hidden-size is not a multiple of --num-attention-heads"


def _vocabulary(a: Arguments) -> tuple[int | None, str]:
    """The padded size and how it comes about; None and why not."""
    if padded := a.integer("padded-vocab-size"):
        return padded, ""
    size = a.integer("vocab-size")
    if not size:
        return None, "the size of the vocabulary is the tokenizer's; --vocab-size is not given"
    end = 1 if a.text("tokenizer-type") == "NullTokenizer" else 0  # it adds an end-of-document token
    unit, tp = a.integer("make-vocab-size-divisible-by") or 128, a.integer("tensor-model-parallel-size") or 1
    padded = -(-(size + end) // (unit * tp)) * unit * tp
    if padded == size:
        return size, ""
    extra = " + 1 of NullTokenizer" if end else ""
    return padded, (
        f"--vocab-size {size}{extra} is padded to {padded}, a multiple of "
        f"--make-vocab-size-divisible-by {unit} x TP {tp}"
    )


def _config(a: Arguments, vocabulary: int) -> dict[str, object]:
    hidden, heads = a.integer("hidden-size") or 1, a.integer("num-attention-heads") or 1
    family = "qwen3" if a.on("qk-layernorm") else "qwen2" if a.on("add-qkv-bias") else "llama"
    config: dict[str, object] = {
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": a.integer("ffn-hidden-size") or hidden * 8 // 3 // 64 * 64,
        "num_hidden_layers": a.integer("num-layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": (a.integer("num-query-groups") or 1)
        if a.on("group-query-attention")
        else heads,
        "head_dim": a.integer("kv-channels") or hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": a.number("norm-epsilon") or 1e-5,
        "rope_theta": float(a.integer("rotary-base") or 10000),
        "tie_word_embeddings": not a.on("untie-embeddings-and-output-weights"),
    }
    if positions := a.integer("max-position-embeddings"):
        config["max_position_embeddings"] = positions
    if a.on("use-rope-scaling"):
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": a.number("rope-scaling-factor") or 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return config
