"""Models with less usual settings: two steps under a few layouts against one process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from tests.runtime.models import COMMON, FAMILIES, Recipe, Trajectory, random_rows, reference
from tests.runtime.sharded import train

TP, W, Q, CP, ORDER = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "rank_order",
)
LLAMA = {**COMMON, "model_type": "llama", "tie_word_embeddings": False}
ODD = {
    "hidden_size": 30,
    "intermediate_size": 62,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": 97,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "windows in some layers": {
        **FAMILIES["qwen2"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "linear rope": {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "llama3 rope": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 1e4,
        },
    },
    "yarn rope": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 1e4,
        },
    },
    "a padding token": {**LLAMA, "pad_token_id": 7},
    "a padding token, tied": {**LLAMA, "pad_token_id": 96, "tie_word_embeddings": True},
    "odd sizes": {**LLAMA, **ODD},
    "odd sizes, tied qwen3 with biases": {**FAMILIES["qwen3"], **ODD, "attention_bias": True},
    "one token of padding a shard": {**LLAMA, "vocab_size": 103, "mlp_bias": True},
    "another activation": {**LLAMA, "hidden_act": "gelu"},
    "four kv heads": {**FAMILIES["qwen3"], "num_key_value_heads": 4},
}
LAYOUTS = [(4, {TP: 2, W: 4, Q: 4}), pytest.param(4, {W: 4, Q: 2}, marks=pytest.mark.long)]


def recipe(family: str, **changes: Any) -> Recipe:
    steps = tuple(tuple(random_rows(4, length=16, seed=s, vocab=97)) for s in (1, 2))
    return Recipe(family=family, steps=steps, length=16, **changes)


def with_family(rank: int, world_size: int, settings: dict[str, Any], r: Recipe, config: Any) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(FAMILIES, r.family, config)
        return train(rank, world_size, settings, r)


@lru_cache
def expected(family: str) -> Trajectory:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(FAMILIES, family, config_of(family))
        return reference(recipe(family))


def config_of(family: str) -> dict[str, Any]:
    return VARIANTS.get(family) or FAMILIES[family]


def check(got: Trajectory, want: Trajectory) -> None:
    assert got.losses == pytest.approx(want.losses, rel=1e-5)
    assert got.norms == pytest.approx(want.norms, rel=1e-4)
    for name, value in want.weights.items():
        assert (got.weights[name] - value).norm() <= 1e-4 * value.norm(), name


@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
@pytest.mark.parametrize("family", VARIANTS)
def test_a_variant_trains_as_in_one_process(
    ranks: Any, family: str, world: int, settings: dict[str, Any]
) -> None:
    got = ranks(world, with_family, settings, recipe(family), config_of(family))[0]
    check(got, expected(family))


@pytest.mark.parametrize("family", ["four kv heads"])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_four_tensor_ranks(ranks: Any, family: str, sequence_parallel: bool) -> None:
    settings = {TP: 4, "sequence_parallel": sequence_parallel}
    got = ranks(4, with_family, settings, recipe(family), config_of(family))[0]
    check(got, expected(family))


@pytest.mark.parametrize(
    "settings",
    [
        {TP: 2, W: 4, CP: 2, ORDER: "tp-cp-gtp-dp-pp"},
        pytest.param({W: 4, Q: 2, CP: 2}, marks=pytest.mark.long),
        pytest.param({W: 4, Q: 2, CP: 2, ORDER: "tp-cp-gtp-dp-pp"}, marks=pytest.mark.long),
        pytest.param({TP: 2, W: 8, Q: 4}, marks=pytest.mark.long),
        pytest.param({TP: 2, W: 4, "sequence_parallel": False, CP: 2}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_eight_ranks(ranks: Any, settings: dict[str, Any]) -> None:
    family = "odd sizes, tied qwen3 with biases"
    got = ranks(8, with_family, settings, recipe(family), config_of(family), timeout_s=90)[0]
    check(got, expected(family))


@pytest.mark.parametrize(
    "settings", [{TP: 2, W: 4, Q: 4}, {TP: 2, "sequence_parallel": False}, {W: 2, CP: 2}], ids=str
)
def test_recomputed_activations_give_the_same_numbers(ranks: Any, settings: dict[str, Any]) -> None:
    family = "llama_biases_tied"
    got = ranks(4, train, settings, recipe(family, gradient_checkpointing=True))[0]
    check(got, expected(family))


@pytest.mark.parametrize("settings", [{TP: 2, W: 4, Q: 4}, {W: 4}, {W: 2, CP: 2}], ids=str)
def test_bf16_stays_near_fp32(ranks: Any, settings: dict[str, Any]) -> None:
    got, want = ranks(4, train, settings, recipe("qwen3", dtype="bfloat16"))[0], expected("qwen3")
    assert got.losses == pytest.approx(want.losses, rel=5e-3)
    assert got.norms == pytest.approx(want.norms, rel=3e-2)
    for name, value in want.weights.items():
        assert got.weights[name].dtype.itemsize == 2
        assert (got.weights[name].float() - value).norm() <= 2e-2 * value.norm(), name
