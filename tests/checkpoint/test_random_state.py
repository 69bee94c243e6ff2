"""Random streams go on where they were, rank by rank; in another layout they start anew, and it is said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rankloom.checkpoint import load, save
from rankloom.checkpoint.random_state import capture, reseed, restore
from tests.checkpoint.runs import W, recipe, started, take

FOUR = {W: 4}


def with_dropout(model: Any) -> None:
    """The models have none themselves."""
    for layer in model.module.model.layers:
        layer.register_forward_hook(lambda module, args, out: functional.dropout(out, 0.1))


def run(rank: int, world_size: int, r: Any, directory: Path, resume: bool) -> Any:
    """Losses and weights of six steps with dropout, or of the last three; then the next numbers drawn."""
    model, optimizer = started(rank, world_size, FOUR, r)
    with_dropout(model)
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    np.random.seed(300 + rank)
    if resume:
        torch.manual_seed(0)
        load(model, optimizer, directory / "step-00000003")
        losses = take(model, optimizer, r, 3, 6)
    else:
        losses = take(model, optimizer, r, 0, 3)
        random.gauss(0, 1)
        np.random.standard_normal()
        save(model, optimizer, directory, step=3, state={})
        losses += take(model, optimizer, r, 3, 6)
    drawn = (torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.standard_normal()))
    return losses[-3:], drawn


def test_dropout_masks_go_on_rank_by_rank(ranks: Any, tmp_path: Path) -> None:
    r = recipe("llama")
    whole = ranks(4, run, r, tmp_path, False, timeout_s=120)
    resumed = ranks(4, run, r, tmp_path, True, timeout_s=120)
    assert resumed == whole
    assert len({drawn for _, drawn in whole}) == 4


def reseeded(rank: int, world_size: int, r: Any, directory: Path, seed: int) -> Any:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    loaded = load(model, optimizer, directory / "step-00000003", seed=seed)
    return loaded.notes, torch.rand(1).item()


def test_another_layout_starts_streams_by_the_rule_and_says_so(ranks: Any, tmp_path: Path) -> None:
    r = recipe("llama")
    ranks(4, run, r, tmp_path, False, timeout_s=120)
    results = ranks(2, reseeded, r, tmp_path, 7)
    assert [notes for notes, _ in results] == [
        (
            "random states: the checkpoint was saved on 4 ranks: TP 1, W 4, Q 1, CP 1; every rank starts a "
            "new stream from seed 7, step 3 and its rank",
        )
    ] * 2
    expected = []
    for rank in range(2):
        reseed(seed=7, step=3, rank=rank)
        expected.append(torch.rand(1).item())
    assert [drawn for _, drawn in results] == expected
    assert len(set(expected)) == 2


def test_states_are_restored_exactly() -> None:
    device = torch.device("cpu")
    random.gauss(0, 1)
    states = capture(device)

    def draw() -> list[float]:
        return [
            random.gauss(0, 1),
            random.random(),
            float(np.random.standard_normal()),
            float(np.random.standard_normal()),
            torch.rand(1).item(),
        ]

    first = draw()
    restore(states, device)
    assert draw() == first
