from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from tests.runtime.models import Recipe, Trajectory, random_rows, reference
from tests.runtime.sharded import train

W, Q, CP, TP = (
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "tensor_model_parallel_size",
)


@lru_cache
def recipe(family: str, **changes: Any) -> Recipe:
    rows = [random_rows(8, length=48, seed=s) for s in range(10)]
    return Recipe(family=family, steps=tuple(tuple(r) for r in rows), length=48, **changes)


@lru_cache
def expected(r: Recipe) -> Trajectory:
    return reference(r)


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (1, {}),
        (2, {W: 2}),
        (4, {W: 4}),
        (4, {W: 2}),
        (4, {W: 4, Q: 4}),
        (4, {W: 2, Q: 2, CP: 2}),
        (4, {TP: 2, W: 4}),
        (4, {TP: 2, W: 4, Q: 4}),
        (4, {TP: 2, "sequence_parallel": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["llama", "llama_biases_tied", "qwen2", "qwen3", "mistral"])
def test_parity(ranks: Any, world: int, settings: dict[str, Any], family: str) -> None:
    r = recipe(family)
    want = expected(r)
    got = ranks(world, train, settings, r, timeout_s=120)[0]
    assert got.losses == pytest.approx(want.losses, rel=1e-5)
    assert got.norms == pytest.approx(want.norms, rel=1e-4)
    for name, value in want.weights.items():
        assert (got.weights[name] - value).norm() <= 1e-4 * value.norm(), name
