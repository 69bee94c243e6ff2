"""Filling a model never needs more than a rank's share and one tensor beside it."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.models import SafetensorsFolder, SeededParameters, ShardedModel, export, fill
from rankloom.plan import Box, ModelPlan, ModelSpec, ParameterSpec
from tests.weights.memory import LiveBytes

CONFIG: dict[str, Any] = {  # 87 MB in fp32; the largest tensors are the embedding and the head, 16 MB each
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8000,
    "tie_word_embeddings": False,
}
LARGEST = 8000 * 512 * 4
ROTARY = 16 * 1024  # inverse frequencies and the like
TP, W = "tensor_model_parallel_size", "tensor_parallel_num_weight_shards"


def empty_model(rank: int, world_size: int, settings: dict[str, Any]) -> ShardedModel:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=60)
    plan = ModelPlan.build(ModelSpec.from_config(CONFIG), layout)
    config = AutoConfig.for_model(**CONFIG)
    return ShardedModel(plan, config, comm, dtype=torch.float32)


class Watched:
    """A source that notes, whenever it hands out a tensor, how much memory of its own the process has."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.most = 0

    def read(self, spec: ParameterSpec, box: Box) -> Tensor:
        value: Tensor = self._source.read(spec, box)
        self.most = max(self.most, anonymous_bytes())
        return value


def anonymous_bytes() -> int:
    """Memory of this process that is no file's: what a mapped file needs can be given back at any time."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon")


def fresh(rank: int, world_size: int, settings: dict[str, Any], folder: Path) -> tuple[int, int, int]:
    """(share, bytes beside gradients that live when the model is built, most of them while it is filled)."""
    with LiveBytes() as live:
        model = empty_model(rank, world_size, settings)
        share = model.plan.parameter_bytes(4)
        built = live.now - share  # as much again for the gradients
        live.peak = 0
        fill(model, SeededParameters(3, std=0.02))
        peak = live.peak - share
    export(model, folder)
    return share, built, peak


def from_files(rank: int, world_size: int, settings: dict[str, Any], folder: Path) -> tuple[int, int, int]:
    """(share, most bytes alive while the model is filled, growth of the process until its last tensor)."""
    give_back_free_memory()
    before = anonymous_bytes()
    source = Watched(SafetensorsFolder(folder, ModelSpec.from_config(CONFIG)))
    with LiveBytes() as live:
        model = empty_model(rank, world_size, settings)
        fill(model, source)
    share = model.plan.parameter_bytes(4)
    return share, live.peak - share, source.most - before


def give_back_free_memory() -> None:
    """What an earlier case has freed counts as ours until the allocator returns it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.parametrize("settings", [{W: 4}, {TP: 2, W: 4}], ids=str)
def test_memory_of_loading_is_a_share_and_the_largest_tensor(
    ranks: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    for share, built, peak in ranks(4, fresh, settings, folder, timeout_s=120):
        assert share == pytest.approx(87_000_000 / 4, rel=0.02)
        assert share <= built <= share + ROTARY
        assert peak <= share + LARGEST + ROTARY
    assert (folder / "model.safetensors").stat().st_size == pytest.approx(87_000_000, rel=0.02)
    for share, peak, grown in ranks(4, from_files, settings, folder, timeout_s=120):
        assert peak <= share + LARGEST + ROTARY
        # Gradients are as large as the share; as zeros, they take no memory before they are written.
        assert 0.9 * share <= grown <= 2 * share + LARGEST
