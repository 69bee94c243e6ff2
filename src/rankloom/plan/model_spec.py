"""The parameters of a Hugging Face causal LM, from its ``config.json`` alone: name, shape, role, gather unit.

A parameter's role is decided here, once; below this file nobody looks at names. Shapes are PyTorch's: a
linear weight is [out_features, in_features], an embedding [vocab_size, hidden_size].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rankloom.errors import UserError
from rankloom.plan.config_values import refuse_values
from rankloom.plan.families import Family, family_of

__all__ = ["ModelSpec", "ParameterSpec", "Role"]

SMALL_UNIT = "small"
MOST_LAYERS = 10_000  # more are a mistake, and would take minutes to lay out
MOST_HEADS = 65_536


class Role(StrEnum):
    """What a parameter is to the layout. The first four are stored as GTP shards; the others are small.

    EMBEDDING    [vocab, hidden]   TP cuts dim 0 (vocabulary)
    COLUMN       [out, in]         TP cuts dim 0
    ROW          [out, in]         TP cuts dim 1
    HEAD         [vocab, hidden]   TP cuts dim 0; the logits are never gathered
    COLUMN_BIAS  [out]             TP cuts dim 0
    ROW_BIAS     [out]             whole on every TP rank, added after the sum
    NORM         [hidden]          whole on every TP rank; sees a slice of the sequence under SP
    HEAD_NORM    [head_dim]        whole on every TP rank; sees only this rank's heads
    """

    EMBEDDING = "embedding"
    COLUMN = "column"
    ROW = "row"
    HEAD = "head"
    COLUMN_BIAS = "column_bias"
    ROW_BIAS = "row_bias"
    NORM = "norm"
    HEAD_NORM = "head_norm"


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter: Hugging Face name, logical (uncut, unpadded) shape, role, and its gather unit."""

    name: str
    shape: tuple[int, ...]
    role: Role
    unit: str  # "model.embed_tokens" | "model.layers.3" | "lm_head"; small parameters: "small"

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of a model and its parameters in the Hugging Face model's own order; a tied lm_head is absent."""

    family: str
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    parameters: tuple[ParameterSpec, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, vocab_size: int | None = None) -> ModelSpec:
        """From the content of a ``config.json``; keys left out take the class defaults of transformers.

        ``vocab_size`` (the tokenizer's) is used where the config has none.
        Raises UserError for another family, dropout, quantized weights, rope that depends on the layout, and
        values that make no model. Unknown keys are not looked at: see `refuse_unknown_fields`.
        """
        family = family_of(config)
        refuse_values(config)
        if vocab_size is not None and config.get("vocab_size") is None:
            config = {**config, "vocab_size": vocab_size}
        read = _Reader(config, family)
        sizes = _Sizes.read(read)
        head_dim_given = config.get("head_dim", family.defaults["head_dim"]) is not None
        _refuse_head_counts(family, sizes, head_dim_given=head_dim_given)
        tied = read.flag("tie_word_embeddings")
        biases = _Biases(*(read.flag(b) for b in (family.qkv_bias, family.output_bias, family.mlp_bias)))
        return cls(
            family=family.name,
            hidden_size=sizes.hidden,
            num_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            intermediate_size=sizes.intermediate,
            vocab_size=sizes.vocab,
            tie_word_embeddings=tied,
            parameters=tuple(_parameters(sizes, biases, head_norms=family.head_norms, tied=tied)),
        )

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, a tied pair counted once."""
        return sum(p.num_elements for p in self.parameters)

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """The TP sizes this model can be cut by, ascending. GTP_remat cuts no heads and may be anything."""
        common = math.gcd(self.num_attention_heads, self.num_key_value_heads, self.intermediate_size)
        return tuple(d for d in range(1, common + 1) if common % d == 0)

    def refuse_tensor_parallel(self, tp: int) -> None:
        """Raises UserError unless TP divides heads, key/value heads and the intermediate width.

        The width is that of one projection: twice it (gate and up together) dividing evenly proves nothing.
        """
        cut = {
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "intermediate_size": self.intermediate_size,
        }
        bad = [f"{key} {size}" for key, size in cut.items() if size % tp]
        if bad:
            allowed = ", ".join(str(d) for d in self.tensor_parallel_sizes)
            raise UserError(
                f"tensor_model_parallel_size {tp} does not divide {' and '.join(bad)} of the model; "
                f"allowed: {allowed}"
            )


@dataclass(frozen=True)
class _Reader:
    """Values of a config, or of its class where the config is silent."""

    config: Mapping[str, object]
    family: Family

    def size(self, key: str, *, null: int | None = None, most: int | None = None) -> int:
        """A positive integer of at most ``most``; ``null`` is what a value of null stands for."""
        value = self.config.get(key, self.family.defaults[key])
        if value is None and (key not in self.config or key in self.family.nullable):
            value = null
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{key} of the model's config must be an integer of at least 1, not {value!r}")
        if most is not None and value > most:
            raise UserError(f"{key} {value} of the model's config is more than {most}, the most there may be")
        return value

    def flag(self, key: bool | str) -> bool:
        if isinstance(key, bool):
            return key
        value = self.config.get(key, self.family.defaults[key])
        if not isinstance(value, bool):
            raise UserError(f"{key} of the model's config must be true or false, not {value!r}")
        return value


@dataclass(frozen=True)
class _Sizes:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @classmethod
    def read(cls, read: _Reader) -> _Sizes:
        hidden, heads = read.size("hidden_size"), read.size("num_attention_heads", most=MOST_HEADS)
        if hidden < heads:
            raise UserError(
                f"hidden_size {hidden} of the model's config is less than num_attention_heads {heads}; "
                f"try {2 * heads} or more"
            )
        return cls(
            hidden=hidden,
            layers=read.size("num_hidden_layers", most=MOST_LAYERS),
            heads=heads,
            kv_heads=read.size("num_key_value_heads", null=heads),
            head_dim=read.size("head_dim", null=hidden // heads),
            intermediate=read.size("intermediate_size"),
            vocab=read.size("vocab_size"),
        )


@dataclass(frozen=True)
class _Biases:
    qkv: bool
    output: bool
    mlp: bool


def _refuse_head_counts(family: Family, sizes: _Sizes, *, head_dim_given: bool) -> None:
    hidden, heads, kv_heads = sizes.hidden, sizes.heads, sizes.kv_heads
    if heads % kv_heads:
        divisors = [d for d in range(1, heads + 1) if heads % d == 0]
        near = [d for d in divisors if d < kv_heads][-1:] + [d for d in divisors if d > kv_heads][:1]
        raise UserError(
            f"num_attention_heads {heads} of the model's config is not a multiple of "
            f"num_key_value_heads {kv_heads}; try num_key_value_heads {_either(near)}"
        )
    # Without a head_dim, hidden_size over heads is one, and it must be even for rotary positions.
    step = heads if head_dim_given else 2 * heads
    if family.hidden_divides_by_heads and hidden % heads:
        raise UserError(
            f"hidden_size {hidden} of the model's config is not a multiple of num_attention_heads {heads}; "
            f"try {_either(_multiples_near(hidden, step))}"
        )
    if sizes.head_dim % 2 == 0:
        return
    if head_dim_given:
        near = [size for size in (sizes.head_dim - 1, sizes.head_dim + 1) if size]
        equation, remedy = f"head_dim {sizes.head_dim}", _either(near)
    else:
        equation = f"head_dim {sizes.head_dim} = hidden_size {hidden} / num_attention_heads {heads}"
        remedy = f"hidden_size {_either(_multiples_near(hidden, step))}"
    raise UserError(
        f"{equation} of the model's config is odd, and rotary positions turn pairs of numbers; try {remedy}"
    )


def _multiples_near(size: int, step: int) -> list[int]:
    below = size // step * step
    return [multiple for multiple in (below, below + step) if multiple]


def _either(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))


def _weight(module: str, rows: int, columns: int, role: Role, *, unit: str) -> ParameterSpec:
    return ParameterSpec(f"{module}.weight", (rows, columns), role, unit)


def _linear(
    module: str, out_features: int, in_features: int, role: Role, *, bias: bool, unit: str
) -> Iterator[ParameterSpec]:
    yield _weight(module, out_features, in_features, role, unit=unit)
    if bias:
        bias_role = Role.COLUMN_BIAS if role is Role.COLUMN else Role.ROW_BIAS
        yield ParameterSpec(f"{module}.bias", (out_features,), bias_role, SMALL_UNIT)


def _parameters(s: _Sizes, biases: _Biases, *, head_norms: bool, tied: bool) -> Iterator[ParameterSpec]:
    yield _weight("model.embed_tokens", s.vocab, s.hidden, Role.EMBEDDING, unit="model.embed_tokens")
    for i in range(s.layers):
        yield from _layer(f"model.layers.{i}", s, biases=biases, head_norms=head_norms)
    yield ParameterSpec("model.norm.weight", (s.hidden,), Role.NORM, SMALL_UNIT)
    if not tied:
        yield _weight("lm_head", s.vocab, s.hidden, Role.HEAD, unit="lm_head")


def _layer(unit: str, s: _Sizes, *, biases: _Biases, head_norms: bool) -> Iterator[ParameterSpec]:
    attention, mlp = f"{unit}.self_attn", f"{unit}.mlp"
    for name, heads in (("q_proj", s.heads), ("k_proj", s.kv_heads), ("v_proj", s.kv_heads)):
        width = heads * s.head_dim
        yield from _linear(f"{attention}.{name}", width, s.hidden, Role.COLUMN, bias=biases.qkv, unit=unit)
    yield from _linear(
        f"{attention}.o_proj", s.hidden, s.heads * s.head_dim, Role.ROW, bias=biases.output, unit=unit
    )
    if head_norms:
        for name in ("q_norm", "k_norm"):
            yield ParameterSpec(f"{attention}.{name}.weight", (s.head_dim,), Role.HEAD_NORM, SMALL_UNIT)
    for name in ("gate_proj", "up_proj"):
        yield from _linear(f"{mlp}.{name}", s.intermediate, s.hidden, Role.COLUMN, bias=biases.mlp, unit=unit)
    yield from _linear(f"{mlp}.down_proj", s.hidden, s.intermediate, Role.ROW, bias=biases.mlp, unit=unit)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield ParameterSpec(f"{unit}.{name}.weight", (s.hidden,), Role.NORM, SMALL_UNIT)
