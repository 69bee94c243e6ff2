"""The products with sharded weights. Each asks for its weight when it needs it and saves its input only.

Legend: T tokens (any leading dims), I this rank's input width, O its output width, V its rows of the
vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rankloom.weights.handle import WeightHandle

__all__ = ["linear", "vocabulary_rows"]


def linear(x: Tensor, bias: Tensor | None, handle: WeightHandle) -> Tensor:
    """x [T, I] @ weight^T [I, O] (+ bias [O])."""
    return _Linear.apply(x, bias, handle)


class _Linear(torch.autograd.Function):
    """
    pass      computes                       weight     communication
    forward   x @ W^T                        gathered   all-gather over gtp_remat, by the schedule
    dgrad     grad @ W                       gathered   all-gather over gtp_remat, by the schedule
    wgrad     grad^T @ x                     -          reduce-scatter over gtp_remat, by the reducer
    saved     x; the weight is gathered again, because holding it would undo the sharding
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, handle: WeightHandle) -> Tensor:
        ctx.save_for_backward(x)
        ctx.handle, ctx.has_bias = handle, bias is not None
        return functional.linear(x, handle.weight(), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x,) = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = (rows @ ctx.handle.weight()).view(x.shape)
        ctx.handle.add_gradient(rows, x.reshape(-1, x.shape[-1]))
        ctx.handle.gradient_written()
        return grad_x, rows.sum(0) if ctx.has_bias else None, None


def vocabulary_rows(
    ids: Tensor, anchor: Tensor, handle: WeightHandle, *, first_row: int, padding_id: int | None
) -> Tensor:
    """Embeds ``ids`` [B, S] with this rank's rows [V, H] of the table, which start at token id ``first_row``:
    zeros for all other ids, so that the sum over tp is the embedding. ``anchor`` (any tensor that requires a
    gradient) is what makes autograd call the backward, as ids carry none. As in torch.nn.Embedding,
    ``padding_id`` gets no gradient."""
    return _VocabularyRows.apply(
        anchor, ids - first_row, handle, None if padding_id is None else padding_id - first_row
    )


class _VocabularyRows(torch.autograd.Function):
    """
    pass      computes                       weight     communication
    forward   rows of W by id, or zeros      gathered   all-gather over gtp_remat, by the schedule
    wgrad     grad added up by id            -          reduce-scatter over gtp_remat, by the reducer
    saved     ids
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, ids: Tensor, handle: WeightHandle, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.handle, ctx.padding = handle, padding
        weight = handle.weight()
        elsewhere = (ids < 0) | (ids >= weight.shape[0])
        return functional.embedding(ids.masked_fill(elsewhere, 0), weight).masked_fill_(
            elsewhere[..., None], 0
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        here = (ids >= 0) & (ids < ctx.handle.placement.tp_local_shape[0])
        if ctx.padding is not None:
            here &= ids != ctx.padding
        ctx.handle.add_row_gradient(ids[here], grad[here])
        ctx.handle.gradient_written()
        return None, None, None, None
