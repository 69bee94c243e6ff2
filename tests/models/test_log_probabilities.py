"""Log-probabilities of single tokens and scores of sequences, in any layout what plain transformers says."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.models import (
    SequenceScore,
    ShardedModel,
    next_tokens,
    sequence_log_probabilities,
    sequence_score,
    whole_rows,
)
from rankloom.plan import ModelSpec
from tests.runtime.models import FAMILIES, PretrainedLike, Recipe, hf_config, random_rows, tensor_rows
from tests.runtime.sharded import build

TP, W, Q, CP, ORDER = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "rank_order",
)
LENGTH, ROWS = 32, 4
LONG = pytest.mark.long
LAYOUTS = [
    (4, {TP: 2, W: 4, Q: 4}),
    (4, {W: 2, CP: 2}),
    pytest.param(1, {}, marks=LONG),
    pytest.param(4, {W: 4, Q: 2}, marks=LONG),
    pytest.param(4, {TP: 2, "sequence_parallel": False}, marks=LONG),
    pytest.param(8, {TP: 2, W: 4, Q: 4, CP: 2}, marks=LONG),
    pytest.param(8, {TP: 2, W: 4, CP: 2, ORDER: "tp-cp-gtp-dp-pp"}, marks=LONG),
]
FAMILY = "qwen3"


@lru_cache
def plain_model(family: str) -> Any:
    model = AutoModelForCausalLM.from_config(copy.deepcopy(hf_config(family)), attn_implementation="eager")
    source, parameters = PretrainedLike(), dict(model.named_parameters())
    with torch.no_grad():
        for p in ModelSpec.from_config(FAMILIES[family]).parameters:
            parameters[p.name].copy_(source.whole(p))
    return model.eval()


@torch.no_grad()
def plain(ids: Any, family: str = FAMILY) -> Tensor:
    """Of every token but the first, alone in the model."""
    tokens = torch.tensor(ids)
    logits = plain_model(family)(input_ids=tokens[None], use_cache=False).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]


def sharded(rank: int, world_size: int, settings: dict[str, Any], family: str = FAMILY) -> ShardedModel:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    return build(layout, Recipe(family=family, steps=(), length=LENGTH), rank)[0]


def packed_rows(lane: int) -> list[Any]:
    return random_rows(ROWS, length=LENGTH, seed=20 + lane)


def of_rows(rank: int, world_size: int, settings: dict[str, Any], family: str) -> Any:
    """Of this rank's lane, all next tokens and the trained ones, as whole rows; what the latter sent, and
    what `evaluate` of the same rows finds and sends."""
    model = sharded(rank, world_size, settings, family)
    rows = tensor_rows(packed_rows(model.plan.layout.lane(rank)), LENGTH)
    everything = replace(rows, labels=next_tokens(rows.input_ids, rows.document_ids))
    whole = whole_rows(model.log_probabilities(everything), model.comm, length=LENGTH)
    at = [model.comm.bytes_sent()]
    local = model.log_probabilities(rows)
    at.append(model.comm.bytes_sent())
    loss, _ = model.evaluate(rows)
    at.append(model.comm.bytes_sent())
    sent = [{name: after[name] - before[name] for name in after} for before, after in pairwise(at)]
    total = model.comm["context"].sum_small(loss, "loss").item()
    return local.shape, whole, whole_rows(local, model.comm, length=LENGTH), total, sent


@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
def test_packed_rows_are_as_their_documents_alone(ranks: Any, world: int, settings: dict[str, Any]) -> None:
    layout = GTPParallelLayout.resolve(world_size=world, **settings)
    results = ranks(world, of_rows, settings, FAMILY, timeout_s=90)
    for rank, (local_shape, whole, trained, loss, sent) in enumerate(results):
        assert whole.dtype == torch.float32
        assert local_shape == (ROWS, LENGTH // layout.runtime_context_parallel_size)
        assert sent[0] == sent[1]
        assert -trained.double().sum().item() == pytest.approx(loss, rel=1e-6)
        for b, row in enumerate(packed_rows(layout.lane(rank))):
            at = 0
            for document in row:
                want, end = plain(document.ids), at + len(document.ids)
                assert (whole[b, at : end - 1] - want).abs().max() <= 1e-5
                counted = torch.tensor(document.trained[1:])
                assert (trained[b, at : end - 1] - want.where(counted, torch.zeros(()))).abs().max() <= 1e-5
                assert whole[b, end - 1] == trained[b, end - 1] == 0.0  # nothing follows it
                at = end


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != FAMILY])
def test_every_family(ranks: Any, family: str) -> None:
    whole = ranks(4, of_rows, {TP: 2, W: 4, Q: 4}, family)[0][1]
    for b, row in enumerate(packed_rows(0)):
        at = 0
        for document in row:
            want, end = plain(document.ids, family), at + len(document.ids)
            assert (whole[b, at : end - 1] - want).abs().max() <= 1e-5
            at = end


def test_next_tokens_stay_in_their_document() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 0]])
    documents = torch.tensor([[0, 0, 0, 1, 1, 2]])
    assert next_tokens(ids, documents).tolist() == [[6, 7, -100, 9, -100, -100]]


def sequences_of(lane: int) -> list[list[int]]:
    """Another number of them in each lane, and of any length; the last one cannot be predicted at all."""
    rng = np.random.default_rng(lane)
    lengths = [int(n) for n in rng.integers(2, 40, size=3 + 2 * lane)]
    return [rng.integers(0, 101, n).tolist() for n in lengths] + [[7], []]


def of_sequences(rank: int, world_size: int, settings: dict[str, Any], empty_lane: int) -> Any:
    model = sharded(rank, world_size, settings)
    lane = model.plan.layout.lane(rank)
    mine = [] if lane == empty_lane else sequences_of(lane)
    return sequence_log_probabilities(model, mine, micro_batch_size=3, pad_token_id=1)


@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
def test_sequences_of_any_number_and_length(ranks: Any, world: int, settings: dict[str, Any]) -> None:
    layout = GTPParallelLayout.resolve(world_size=world, **settings)
    empty_lane = layout.batch_parallel_size - 1 if layout.batch_parallel_size > 1 else -1
    results = ranks(world, of_sequences, settings, empty_lane, timeout_s=90)
    for rank, found in enumerate(results):
        lane = layout.lane(rank)
        assert all(np.array_equal(a, b) for a, b in zip(found, results[layout.owner(lane)], strict=True))
        given = [] if lane == empty_lane else sequences_of(lane)
        assert [len(a) for a in found] == [len(ids) for ids in given]
        for ids, got in zip(given[:-2], found, strict=False):
            want = plain(ids)
            assert got.dtype == np.float32
            assert got[0] == 0.0
            assert np.abs(got[1:] - want.numpy()).max() <= 1e-5
            score = sequence_score(got)
            assert score.log_likelihood == pytest.approx(want.double().sum().item(), rel=1e-6)
            assert (score.num_tokens, score.head) == (len(ids) - 1, None)


def test_scores_count_what_they_are_told() -> None:
    found = np.array([0.0, -1.5, -0.25, -4.0], dtype=np.float32)
    assert sequence_score(found) == SequenceScore(-5.75, 3)
    assert sequence_score(found, [True, False, True, True]) == SequenceScore(-4.25, 2)
    assert sequence_score(found, [False] * 4) == SequenceScore(0.0, 0)
    assert sequence_score(found[:1]) == SequenceScore(0.0, 0)
    assert sequence_score(found[:0]) == SequenceScore(0.0, 0)


def unknown_id(rank: int, world_size: int, token: int) -> str:
    model = sharded(rank, world_size, {})
    with pytest.raises(UserError) as refusal:
        sequence_log_probabilities(model, [[1, 2], [3, token, 5]], micro_batch_size=1)
    return str(refusal.value)


@pytest.mark.parametrize("token", [101, -1])
def test_an_id_that_is_not_in_the_vocabulary(ranks: Any, token: int) -> None:
    assert ranks(1, unknown_id, token) == [
        f"sequence 1 of the lane has token id {token}; the vocabulary has 101 tokens, with ids 0 to 100"
    ]
