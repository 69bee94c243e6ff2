"""Microbatches of one step, one after the other: what is kept between them does not grow."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rankloom.layout import GTPParallelLayout
from tests.runtime.models import Recipe, random_rows
from tests.runtime.sharded import build, step

W = "tensor_parallel_num_weight_shards"
LENGTH = 64


class Peak(TorchDispatchMode):
    """The largest sum of bytes of the storages that were made in it and were still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self._alive = 0
        self._seen: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor.untyped_storage())
        return made

    def _meet(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = size
        weakref.finalize(storage, self._end, size)
        self._alive += size
        self.num_bytes = max(self.num_bytes, self._alive)

    def _end(self, size: int) -> None:
        self._alive -= size


def peak_bytes(rank: int, world_size: int, parallel: dict[str, int], counts: list[int]) -> list[int]:
    """Of a step, for each number of microbatches in it."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **parallel)
    recipe = Recipe(family="llama", steps=(), length=LENGTH)
    model, optimizer = build(layout, recipe, rank)
    rows = random_rows(max(counts) * layout.batch_parallel_size, length=LENGTH, seed=1)
    step(model, optimizer, rows, recipe)  # what is made once is there from here on
    found = []
    for count in counts:
        gc.collect()
        with Peak() as peak:
            step(model, optimizer, rows[: count * layout.batch_parallel_size], recipe)
        found.append(peak.num_bytes)
    return found


@pytest.mark.parametrize(("world", "parallel"), [(1, {}), (2, {W: 2}), (2, {})], ids=str)
def test_peak_memory_does_not_grow_with_accumulation_steps(
    ranks: Any, world: int, parallel: dict[str, int]
) -> None:
    logits = LENGTH * 101 * 4  # of one microbatch; each keeps several of these for its backward
    for one, two, eight in ranks(world, peak_bytes, parallel, [1, 2, 8], timeout_s=60):
        assert one > 4 * logits
        assert two <= 1.2 * one  # the last one's rows and sums, until the next one's are there
        assert eight == two
