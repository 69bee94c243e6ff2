"""Attention of local queries over the whole row: keys and values are gathered over the context group.

Legend: B rows, N query heads and K key/value heads of this TP rank, S tokens of a row, s = S / C local ones,
D head dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankloom.comm import Group
from rankloom.context.segments import Segment
from rankloom.context.slices import ContextSlices

__all__ = ["ATTENTION_NAME", "ContextTokens", "attention_forward"]

ATTENTION_NAME = "rankloom_context"


@dataclass(frozen=True)
class ContextTokens:
    """What attention must know about a microbatch; handed to it through the model's keyword arguments."""

    group: Group
    slices: ContextSlices
    rows: Sequence[Sequence[Segment]]  # segments of each of the B rows
    masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)

    def mask(self, segment: Segment, window: int | None, device: torch.device) -> Tensor | None:
        """True where a query sees a key, [queries, keys]; None where plain causal order says it all."""
        m, n = segment.num_queries, segment.num_keys
        if m == n and (window is None or n <= window):
            return None
        key = (m, n, window if window is not None and n > window else None)
        if key not in self.masks:
            distance = (
                torch.arange(n - m, n, device=device)[:, None] - torch.arange(n, device=device)[None, :]
            )
            self.masks[key] = (distance >= 0) if key[2] is None else (distance >= 0) & (distance < key[2])
        return self.masks[key]


class _GatherKeysValues(torch.autograd.Function):
    """
    pass      local                global               communication (context group)
    forward   k, v [B, K, s, D]    k, v [B, K, S, D]    all-gather, both in one
    backward  their gradients      their gradients      reduce-scatter: every rank's queries see every key
    saved     nothing
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, tokens: ContextTokens) -> tuple[Tensor, Tensor]:
        ctx.tokens, ctx.dtype = tokens, k.dtype
        parts = tokens.group.stack(torch.stack([k, v]), "gather keys and values")  # [C, 2, B, K, s, D]
        whole = tokens.slices.join(parts, dim=3)
        return whole[0], whole[1]

    @staticmethod
    def backward(ctx: Any, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, Tensor, None]:
        tokens: ContextTokens = ctx.tokens
        parts = tokens.slices.split(torch.stack([grad_k, grad_v]), dim=3)
        total = torch.empty(parts.shape[1:], dtype=torch.float32, device=parts.device)
        tokens.group.reduce_scatter([(total, parts)], "sum gradients of keys and values").wait()
        total = total.to(ctx.dtype)
        return total[0], total[1], None


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    rankloom_tokens: ContextTokens | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The attention function of every layer, in the form transformers calls it: query [B, N, s, D], key and
    value [B, K, s, D] to [B, s, N, D]. Positions are already rotated in; documents and causal order come with
    ``rankloom_tokens``."""
    assert rankloom_tokens is not None
    assert attention_mask is None
    assert dropout == 0.0
    tokens = rankloom_tokens
    if tokens.group.size > 1:
        key, value = _GatherKeysValues.apply(key, value, tokens)
    rows = [
        _row(query[b : b + 1], key[b : b + 1], value[b : b + 1], tokens, segments, scaling, sliding_window)
        for b, segments in enumerate(tokens.rows)
    ]
    out = rows[0] if len(rows) == 1 else torch.cat(rows)
    return out.transpose(1, 2).contiguous(), None


def _row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tokens: ContextTokens,
    segments: Sequence[Segment],
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """One row: [1, N, s, D] against [1, K, S, D]."""
    queries = query.split([s.num_queries for s in segments], dim=2)
    outputs = []
    for q, segment in zip(queries, segments, strict=True):
        k = key.narrow(2, segment.key_start, segment.num_keys)
        v = value.narrow(2, segment.key_start, segment.num_keys)
        mask = tokens.mask(segment, window, q.device)
        outputs.append(
            functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
