"""Attention over the context group against a dense masked softmax in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankloom.context import ContextSlices, ContextTokens, attention_forward, segments_of_row
from tests.weights.units import CP, Q, W, communicator

HEADS, D, S = 4, 8, 24
# Rows of documents: borders inside a chunk, on a border of chunks, one document, many of one token.
ROWS = [[5, 2, 17], [6, 6, 12], [24], [1, 1, 1, 20, 1], [3, 9, 4, 8]]


def documents(lengths: list[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).int()


def whole_inputs(kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradient of the output, of whole rows."""
    generator = torch.Generator().manual_seed(kv_heads)
    shapes = [(len(ROWS), n, S, D) for n in (HEADS, kv_heads, kv_heads)] + [(len(ROWS), S, HEADS, D)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def dense(kv_heads: int, window: int | None, scaling: float) -> list[Tensor]:
    """Output and gradients of q, k, v, computed with a mask of all pairs in fp64."""
    *inputs, grad = (t.double() for t in whole_inputs(kv_heads, torch.float32))
    q, k, v = (t.requires_grad_() for t in inputs)
    positions = torch.arange(S)
    distance = positions[:, None] - positions[None, :]
    ids = torch.stack([documents(row) for row in ROWS])
    allowed = (ids[:, :, None] == ids[:, None, :]) & (distance >= 0)
    if window is not None:
        allowed &= distance < window
    wide_k, wide_v = (t.repeat_interleave(HEADS // kv_heads, dim=1) for t in (k, v))
    scores = (q @ wide_k.transpose(2, 3)) * scaling
    weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    out = (weights @ wide_v).transpose(1, 2)
    out.backward(grad)
    return [t.detach().float() for t in (out, *(x.grad for x in (q, k, v)))]  # type: ignore[union-attr]


def cut_attention(
    rank: int, world_size: int, settings: dict[str, Any], kv_heads: int, window: int | None, scaling: float
) -> list[Tensor]:
    group = communicator(rank, world_size, settings)["context"]
    slices = ContextSlices(S, group.size)
    tokens = ContextTokens(
        group, slices, [segments_of_row(documents(r).numpy(), slices, rank=group.index) for r in ROWS]
    )
    *inputs, grad = whole_inputs(kv_heads, torch.float32)
    q, k, v = (
        slices.take(t.transpose(1, 2), group.index).transpose(1, 2).contiguous().requires_grad_()
        for t in inputs
    )
    out, _ = attention_forward(
        nn.Module(), q, k, v, None, scaling=scaling, sliding_window=window, rankloom_tokens=tokens
    )
    out.backward(slices.take(grad, group.index))
    local = [out.detach(), *(x.grad.transpose(1, 2) for x in (q, k, v))]  # type: ignore[union-attr]
    whole = [slices.join(group.stack(t.contiguous(), "test"), dim=1) for t in local]
    return [whole[0], *(t.transpose(1, 2) for t in whole[1:])]


LAYOUTS = [(1, {}), (2, {CP: 2}), (3, {CP: 3}), (4, {CP: 4}), (4, {W: 2, Q: 2, CP: 2})]


@pytest.mark.parametrize(("kv_heads", "window"), [(4, None), (2, None), (1, 5), (4, 3), (2, 1), (2, 24)])
@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
def test_output_and_gradients_equal_a_dense_softmax(
    ranks: Any, world: int, settings: dict[str, Any], kv_heads: int, window: int | None
) -> None:
    want = dense(kv_heads, window, 0.3)
    for got in ranks(world, cut_attention, settings, kv_heads, window, 0.3):
        for name, a, b in zip(("out", "q", "k", "v"), got, want, strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5, msg=name)


def what_others_documents_change(rank: int, world_size: int) -> bool:
    """Tokens of one document have no influence at all on another's output or gradients."""
    group = communicator(rank, world_size, {CP: world_size})["context"]
    slices = ContextSlices(S, group.size)
    ids = documents([7, 17])
    tokens = ContextTokens(group, slices, [segments_of_row(ids.numpy(), slices, rank=group.index)])
    first = slices.take((ids == 0)[None], group.index)[0]
    outputs = []
    for value in (0.0, 1e6):
        q, k, v, _ = (t[:1].clone() for t in whole_inputs(4, torch.float32))
        k[:, :, ids == 1] += value
        v[:, :, ids == 1] += value
        local = (slices.take(t.transpose(1, 2), group.index).transpose(1, 2).contiguous() for t in (q, k, v))
        out, _ = attention_forward(nn.Module(), *local, None, scaling=0.3, rankloom_tokens=tokens)
        outputs.append(out[:, first])
    return torch.equal(*outputs)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_documents_do_not_see_each_other(ranks: Any, n: int) -> None:
    assert all(ranks(n, what_others_documents_change))


def gradients_in_bf16(rank: int, world_size: int) -> Tensor:
    """Every rank's queries give token 0's value a gradient of 1 / (position + 1)."""
    group = communicator(rank, world_size, {CP: world_size})["context"]
    slices = ContextSlices(S, group.size)
    tokens = ContextTokens(group, slices, [segments_of_row(documents([S]).numpy(), slices, rank=group.index)])
    zeros = torch.zeros(1, 1, slices.local_length, 1, dtype=torch.bfloat16)
    v = zeros.clone().requires_grad_()
    out, _ = attention_forward(nn.Module(), zeros, zeros, v, None, rankloom_tokens=tokens)
    out.backward(torch.ones_like(out))
    assert v.grad is not None
    return v.grad.flatten()


def test_gradients_of_bf16_keys_and_values_keep_their_dtype(ranks: Any) -> None:
    results = ranks(2, gradients_in_bf16)
    assert all(g.dtype is torch.bfloat16 for g in results)
    harmonic = sum(1 / n for n in range(1, S + 1))
    assert results[0][0].item() == pytest.approx(harmonic, rel=2**-7)
