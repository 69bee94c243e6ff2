"""Microbatches, lanes and masks: sums over the whole global batch, divided once, counted once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankloom.comm import Activity, Communicator
from rankloom.config import resolve
from rankloom.data import GlobalStream, TokenizedDataset
from rankloom.data.prepare import PreparedData
from rankloom.layout import GTPParallelLayout
from rankloom.models import Rows
from rankloom.train.worker import Worker
from rankloom.weights import head
from tests.runtime.models import Document, Recipe, Trajectory, random_rows, reference, tensor_rows
from tests.runtime.runs import run, settings, write_chats
from tests.runtime.sharded import build, step, train

TP, W, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "context_parallel_size",
)


class ToldLosses:
    """A model of which the loss sum is known: 10 for one trained token, 2 for nine."""

    def forward_backward(self, rows: Rows, *, first: bool, last: bool) -> tuple[Tensor, Tensor]:
        trained = (rows.labels != -100).sum()
        return torch.tensor({1: 10.0, 9: 2.0}[int(trained)], dtype=torch.float64), trained


class ToldNorm:
    def __init__(self) -> None:
        self.divisors: list[int] = []

    def finish_reductions(self) -> None: ...

    def norm_and_wishes(self, num_tokens: int, *, wish: bool) -> tuple[float, int]:
        self.divisors.append(num_tokens)
        return 1.0, int(wish)

    def step(self, *, lr: float, num_tokens: int, norm: float) -> None:
        self.divisors.append(num_tokens)


def worker_step(rank: int, world_size: int, config: dict[str, Any]) -> tuple[float, int, list[int]]:
    """One step on two rows, of 1 and of 9 trained tokens."""
    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=30)
    dataset = TokenizedDataset.of([[1, 2], list(range(10))], [[True] * 2, [True] * 10])
    stream = GlobalStream(dataset, max_seq_length=16, packing=False, seed=0, global_batch_size=2)
    data = PreparedData(
        tokenizer=SimpleNamespace(),  # type: ignore[arg-type]
        vocab_size=16,
        pad_token_id=0,
        dataset=dataset,
        stream=stream,
        facts=(),
        fingerprint="0",
    )
    told = ToldNorm()
    worker = Worker(
        resolved,
        comm,
        data,
        model=ToldLosses(),  # type: ignore[arg-type]
        optimizer=told,  # type: ignore[arg-type]
        activity=Activity(),
    )
    outcome = worker.step(0, lr=0.0)
    return outcome.loss, outcome.valid_tokens, told.divisors


@pytest.mark.parametrize(("world", "parallel"), [(1, {}), (2, {}), (2, {W: 2})], ids=str)
def test_uneven_microbatches_and_lanes_are_weighted_by_their_tokens(
    ranks: Any, tmp_path: Path, world: int, parallel: dict[str, Any]
) -> None:
    config = settings(
        tmp_path,
        parallel=parallel,
        world_size=world,
        train={"global_batch_size": 2, "max_steps": 1},
        data={"max_seq_length": 16},
    )
    for loss, tokens, divisors in ranks(world, worker_step, config):
        assert loss == pytest.approx(1.2, rel=1e-15)  # the mean of means would be 5.11
        assert tokens == 10
        assert divisors == [10, 10]


def uneven(micro_batch_size: int) -> Recipe:
    steps = tuple(tuple(random_rows(8, length=24, seed=s)) for s in (1, 2))
    return Recipe(family="llama", steps=steps, length=24, micro_batch_size=micro_batch_size)


@lru_cache
def expected() -> Trajectory:
    return reference(uneven(1))


@pytest.mark.parametrize(
    ("world", "parallel", "micro_batch_size"),
    [
        (1, {}, 1),
        (1, {}, 2),
        (1, {}, 8),
        (2, {W: 2}, 1),
        (2, {W: 2}, 2),
        (2, {W: 2}, 4),
        (4, {W: 2}, 1),
        (4, {W: 2}, 2),
    ],
    ids=str,
)
def test_the_number_of_microbatches_changes_nothing(
    ranks: Any, world: int, parallel: dict[str, Any], micro_batch_size: int
) -> None:
    got, want = ranks(world, train, parallel, uneven(micro_batch_size))[0], expected()
    assert got.losses == pytest.approx(want.losses, rel=1e-6)
    assert got.norms == pytest.approx(want.norms, rel=1e-5)
    for name, value in want.weights.items():
        assert (got.weights[name] - value).norm() <= 1e-5 * value.norm(), name


def masked(length: int = 16) -> tuple[Document, ...]:
    ids = tuple(np.random.default_rng(0).integers(0, 101, length).tolist())
    return (Document(ids, (False,) * length),)


def trained_from(first: int, length: int, seed: int) -> tuple[Document, ...]:
    ids = tuple(np.random.default_rng(seed).integers(0, 101, length).tolist())
    return (Document(ids, tuple(i >= first for i in range(length))),)


def two_lanes(rank: int, world_size: int, parallel: dict[str, Any], r: Recipe) -> Any:
    """(loss, norm) of a step; trained tokens and largest gradient of this rank's own lane, before any sum."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **parallel)
    model, optimizer = build(layout, r, rank)
    first = step(model, optimizer, r.steps[0], r)
    model, _ = build(layout, r, rank)
    written = {}
    for unit in model.units:

        def launch(unit: Any = unit, **_: Any) -> None:
            unit.gradients.zero_()
            written[unit.name] = max([0.0, *(float(t.abs().max()) for t in unit._inputs.values())])
            unit._inputs, unit._written = {}, {}

        unit.launch_reduction = launch  # type: ignore[method-assign]
    model.reducer.on_complete = lambda unit: None
    loss, tokens = model.forward_backward(
        tensor_rows(r.steps[0][layout.lane(rank) :][:1], r.length), first=True, last=True
    )
    own = max([*written.values(), float(model.small.gradients.abs().max())])
    return first, loss.item(), int(tokens), own


@pytest.mark.parametrize("parallel", [{W: 2}, {}], ids=str)
def test_a_lane_that_trains_on_nothing_takes_part_with_gradient_zero(
    ranks: Any, parallel: dict[str, Any]
) -> None:
    r = Recipe(family="qwen3", steps=((masked(), trained_from(5, 16, 1)),), length=16)
    want = reference(r)
    idle, busy = ranks(2, two_lanes, parallel, r, timeout_s=30)
    for first, *_ in (idle, busy):
        assert first[0] == pytest.approx(want.losses[0], rel=1e-6)
        assert first[1] == pytest.approx(want.norms[0], rel=1e-5)
    assert idle[1:] == (0.0, 0, 0.0)
    assert busy[2] == 11
    assert busy[3] > 0


def chunked_loss(rank: int, world_size: int, r: Recipe, elements: int) -> tuple[float, float]:
    layout = GTPParallelLayout.resolve(world_size=world_size, **{W: 2})
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(head, "CHUNK_ELEMENTS", elements)
        model, optimizer = build(layout, r, rank)
        return step(model, optimizer, r.steps[0], r)


def test_lanes_with_different_numbers_of_trained_tokens_agree_on_chunks(ranks: Any) -> None:
    """64 and 320 trained tokens, 256 tokens of logits at a time."""
    rows = (trained_from(384 - 64, 384, 1), trained_from(384 - 320, 384, 2))
    r = Recipe(family="llama", steps=(rows,), length=384)
    want = reference(r)
    for loss, norm in ranks(2, chunked_loss, r, 256 * 101, timeout_s=30):
        assert loss == pytest.approx(want.losses[0], rel=1e-6)
        assert norm == pytest.approx(want.norms[0], rel=1e-5)


def counted(ranks: Any, tmp_path: Path, parallel: dict[str, Any], world: int) -> list[tuple[Any, ...]]:
    config = settings(tmp_path, parallel=parallel, world_size=world)
    config["train"] |= {"max_steps": 3}
    results = ranks(world, run, config, timeout_s=90)
    keys = ("step", "consumed_samples", "consumed_chats", "consumed_tokens", "valid_tokens")
    rows = [[tuple(row[key] for key in keys) for row in rank] for rank in results]
    assert all(rank == rows[0] for rank in rows)
    lrs = [row["lr"] for row in results[0]]
    assert lrs == [3e-3 * 8 / 16, 3e-3, lrs[2]]  # warm-up over 16 samples
    return rows[0]


def test_samples_and_tokens_are_counted_once_in_any_layout(ranks: Any, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl")
    big = settings(tmp_path, parallel={TP: 2, W: 8}, world_size=8)
    resolved = resolve(big)
    assert resolved.layout.batch_parallel_size == 4
    assert resolved.batch.num_microbatches == 2
    rows = counted(ranks, tmp_path, {TP: 2, W: 8}, 8)
    assert [row[1] for row in rows] == [8, 16, 24]
    for world, parallel in ((4, {}), (4, {CP: 2}), (8, {W: 2}), (2, {TP: 2})):
        assert counted(ranks, tmp_path, parallel, world) == rows, parallel
        assert resolve(settings(tmp_path, parallel=parallel, world_size=world)).train.global_batch_size == 8
