"""Labels, positions and borders of documents, from records to the loss of a sharded model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankloom.context import ContextSlices, segments_of_row
from rankloom.data import Row, TokenizedDataset
from rankloom.data.lanes import build_microbatch
from rankloom.layout import GTPParallelLayout
from rankloom.models import Rows
from tests.runtime.models import Document, Recipe, reference, tensor_rows
from tests.runtime.sharded import build, step

TP, W, Q, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
)
Settings = dict[str, Any]


def document(length: int, *, seed: int = 0) -> Document:
    ids = torch.randint(0, 101, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Document(tuple(ids), (True,) * length)


def packed(*lengths: int, max_seq_length: int) -> Any:
    """One row of records that count on: 0, 1, 2 ... through all of them, all trained."""
    ids, at = [], 0
    for length in lengths:
        ids.append(list(range(at, at + length)))
        at += length
    dataset = TokenizedDataset.of(ids, [[True] * n for n in lengths])
    row = Row(row_id=0, epoch=0, records=tuple(range(len(lengths))))
    return build_microbatch([row], dataset, max_seq_length=max_seq_length, pad_token_id=0)


def slices_of(array: Any, num_ranks: int) -> list[list[int]]:
    cut = ContextSlices(array.shape[1], num_ranks)
    return [cut.take(torch.from_numpy(array), rank)[0].tolist() for rank in range(num_ranks)]


def test_labels_are_shifted_before_the_row_is_cut() -> None:
    rows = packed(8, max_seq_length=8)
    assert slices_of(rows.input_ids, 2) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert slices_of(rows.labels, 2) == [[1, 2, 7, -100], [3, 4, 5, 6]]
    assert slices_of(rows.position_ids, 2) == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_the_last_token_of_a_document_predicts_nothing() -> None:
    rows = packed(3, 3, max_seq_length=8)
    assert rows.labels[0].tolist() == [1, 2, -100, 4, 5, -100, -100, -100]
    assert rows.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert rows.document_ids[0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_all_tokens_of_an_odd_length_are_seen_by_attention() -> None:
    rows = packed(7, max_seq_length=8)
    cut = ContextSlices(8, 2)
    queries = [s for rank in range(2) for s in segments_of_row(rows.document_ids[0], cut, rank=rank)]
    assert sum(s.num_queries for s in queries if s.key_start == 0) == 7
    assert [s.num_queries for s in queries if s.key_start == 7] == [1]  # padding sees itself alone


def of_whole_rows(rank: int, world_size: int, settings: Settings, many: list[Rows]) -> list[float]:
    """The loss sum of each microbatch over its context ranks, before any training."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, _ = build(layout, Recipe(family="qwen3", steps=(), length=0), rank)
    context = model.comm["context"]
    return [context.sum_small(model.evaluate(rows)[0][None], "loss").item() for rows in many]


def loss_of(ranks: Any, world_size: int, settings: Settings, *many: Rows) -> list[float]:
    results = ranks(world_size, of_whole_rows, settings, list(many))
    assert all(result == results[0] for result in results)
    return results[0]


CUT = [
    (2, {CP: 2}),
    (2, {W: 2, Q: 2}),
    (4, {TP: 2, CP: 2}),
    (4, {W: 2, CP: 2, Q: 2}),
]


@pytest.mark.parametrize(("world", "settings"), CUT, ids=str)
def test_an_odd_length_has_the_same_loss_in_any_cut(ranks: Any, world: int, settings: Settings) -> None:
    row = (document(7),)
    (want,) = loss_of(ranks, 1, {}, tensor_rows([row], 7))
    length = 16 if world == 4 else 8
    assert loss_of(ranks, world, settings, tensor_rows([row], length)) == pytest.approx([want], rel=1e-6)


@pytest.mark.parametrize(("world", "settings"), [(1, {}), *CUT], ids=str)
def test_a_sample_packed_alone_has_the_loss_it_has_unpacked(
    ranks: Any, world: int, settings: Settings
) -> None:
    row = (document(16, seed=4),)
    (want,) = loss_of(ranks, 1, {}, tensor_rows([row], 16))
    alone, beside = loss_of(
        ranks, world, settings, tensor_rows([row], 32), tensor_rows([(*row, untrained(9))], 32)
    )
    assert alone == pytest.approx(want, rel=1e-6)
    assert beside == pytest.approx(want, rel=1e-6)


def untrained(length: int) -> Document:
    return Document(document(length, seed=9).ids, (False,) * length)


@pytest.mark.parametrize(("world", "settings"), [(1, {}), *CUT], ids=str)
def test_a_document_packed_twice_gives_the_same_for_both(ranks: Any, world: int, settings: Settings) -> None:
    """Token by token: a microbatch for each of the four predictions of each copy."""
    copies = [only(copy, at) for copy in range(2) for at in range(4)]
    losses = loss_of(ranks, world, settings, *copies)
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-5)
    assert len({round(loss, 3) for loss in losses[:4]}) == 4


def only(copy: int, at: int) -> Rows:
    twice = document(5, seed=2)
    rows = tensor_rows([(twice, twice)], 16)
    labels = torch.full_like(rows.labels, -100)
    labels[0, 5 * copy + at] = rows.labels[0, 5 * copy + at]
    return Rows(rows.input_ids, labels, rows.position_ids, rows.document_ids)


def positions_matter(rank: int, world_size: int) -> list[float]:
    """The same row with its own positions, and with positions that count on into the second document."""
    twice = document(5, seed=2)
    rows = tensor_rows([(twice, twice)], 12)
    counted_on = torch.arange(12)[None]
    ones = torch.zeros_like(rows.document_ids)
    return of_whole_rows(
        rank,
        world_size,
        {CP: world_size},
        [
            rows,
            Rows(rows.input_ids, rows.labels, 2 * rows.position_ids, rows.document_ids),
            Rows(rows.input_ids, rows.labels, counted_on, rows.document_ids),
            Rows(rows.input_ids, rows.labels, counted_on, ones),
        ],
    )


@pytest.mark.parametrize("n", [1, 2])
def test_positions_and_borders_given_with_the_rows_are_used(ranks: Any, n: int) -> None:
    own, stretched, counted_on, one_document = ranks(n, positions_matter)[0]
    assert counted_on == pytest.approx(own, rel=1e-5)  # rotary positions are relative inside a document
    assert abs(stretched - own) > 1e-3
    assert abs(one_document - own) > 1e-3


def step_of(rank: int, world_size: int, settings: Settings, r: Recipe) -> tuple[float, float]:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, optimizer = build(layout, r, rank)
    return step(model, optimizer, r.steps[0], r)


@pytest.mark.parametrize(
    ("world", "settings"),
    [(4, {TP: 2, CP: 2}), (4, {TP: 2, W: 4, Q: 4}), (4, {CP: 4}), (4, {W: 4, Q: 4})],
    ids=str,
)
def test_a_rank_that_holds_nothing_but_padding_takes_part(ranks: Any, world: int, settings: Settings) -> None:
    """Two tokens in a row of 16: all but the first context rank hold padding only."""
    row = (document(2),)
    r = Recipe(family="qwen3", steps=((row,),), length=16)
    want = reference(r)
    for loss, norm in ranks(world, step_of, settings, r):
        assert loss == pytest.approx(want.losses[0], rel=1e-6)
        assert norm == pytest.approx(want.norms[0], rel=1e-5)


def hidden_states(rank: int, world_size: int, n: int) -> Tensor:
    layout = GTPParallelLayout.resolve(world_size=world_size, **{CP: n})
    model, _ = build(layout, Recipe(family="qwen2", steps=(), length=0), rank)
    twice = document(5, seed=2)
    context = model.comm["context"]
    model.schedule.begin("evaluate")
    with torch.no_grad():
        _, hidden = model._hidden(tensor_rows([(twice, twice)], 16))
    model.schedule.end()
    return ContextSlices(16, n).join(context.stack(hidden, "test"), dim=1)[0]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_both_copies_have_the_same_output_and_so_the_same_logits(ranks: Any, n: int) -> None:
    for hidden in ranks(n, hidden_states, n):
        torch.testing.assert_close(hidden[:5], hidden[5:10], atol=1e-5, rtol=0)
