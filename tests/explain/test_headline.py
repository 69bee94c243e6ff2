"""A layout in one sentence."""

from __future__ import annotations

import pytest

from rankloom.explain.headline import headline
from rankloom.layout import GTPParallelLayout

W, Q = "tensor_parallel_num_weight_shards", "tensor_parallel_num_sequence_shards"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"world_size": 131072, W: 131072},
            "131,072 GPUs hold 1 copy of the weights, cut 131,072 ways, and train on"
            " 131,072 lanes; no row is cut.",
        ),
        (
            {"world_size": 8192, "tensor_model_parallel_size": 2, W: 4096, Q: 4096},
            "8,192 GPUs hold 2 copies of the weights, each cut 4,096 ways, and train on 2 lanes; each row is"
            " cut into 2,048 parts, each worked on by 2 GPUs together.",
        ),
        (
            {"world_size": 4096, "context_parallel_size": 2048, "pipeline_model_parallel_size": 2},
            "4,096 GPUs hold 2,048 copies of the weights, each spread over 2 pipeline stages, and train on"
            " 1 lane; each row is cut over 2,048 GPUs.",
        ),
    ],
)
def test_large_numbers_have_separators(settings: dict[str, int], sentence: str) -> None:
    assert headline(GTPParallelLayout.resolve(**settings)) == sentence  # type: ignore[arg-type]
