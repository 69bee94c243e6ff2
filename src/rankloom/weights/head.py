"""Output head and loss in one: logits exist for a few tokens and this rank's rows of the vocabulary only.

Legend: T tokens of this context rank, H hidden, V this rank's rows of the vocabulary, c tokens of a chunk.

The loss is a plain sum, so its gradient can be computed chunk by chunk while the logits are there: nothing of
size T x V is kept, and the head's weight is gathered once a microbatch. Source of the sums over vocabulary
slices: Megatron-LM (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankloom.weights.handle import WeightHandle
from rankloom.weights.regions import TensorParallelRegion

__all__ = ["IGNORE", "VocabularyHead"]

IGNORE = -100
CHUNK_ELEMENTS = 1 << 23  # logits at a time: 32 MiB in fp32


@dataclass(frozen=True)
class VocabularyHead:
    """Cross-entropy over the vocabulary that tp cuts; ``first_row`` is the token id of this rank's first
    row."""

    handle: WeightHandle
    region: TensorParallelRegion
    first_row: int

    def loss_and_gradient(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the token losses (fp64, equal on all TP ranks) and its gradient with respect to ``hidden``.

        hidden [B, s, H] as the final norm gives it, labels [B, S] of all tokens of this context rank, IGNORE
        where a token is not trained. Adds the head's weight gradient, all-gathers and sums over tp."""
        x = self.region.spread(hidden.detach())
        flat, targets = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        grad = torch.empty_like(flat)
        weight = self.handle.weight()
        loss = torch.zeros((), dtype=torch.float64, device=x.device)
        for part in self._parts(len(flat)):
            losses, grad_logits = self._chunk(flat[part] @ weight.t(), targets[part]).with_gradient()
            loss += losses.sum(dtype=torch.float64)
            grad_logits = grad_logits.to(x.dtype)
            torch.mm(grad_logits, weight, out=grad[part])
            self.handle.add_gradient(grad_logits, flat[part])
        self.handle.gradient_written()
        return loss, self.region.collect(grad.view(x.shape))

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The sum alone, for evaluation."""
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for losses in self._losses(hidden, labels):
            total += losses.sum(dtype=torch.float64)
        return total

    def log_probabilities(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The log-probability of each label, fp32 [B, S], 0 where it is IGNORE; equal on all TP ranks."""
        losses = torch.cat(list(self._losses(hidden, labels)))
        return 0.0 - losses.view(labels.shape)

    def _losses(self, hidden: Tensor, labels: Tensor) -> Iterator[Tensor]:
        """Token losses [c], chunk by chunk."""
        x = self.region.spread(hidden.detach())
        flat, targets = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        weight = self.handle.weight()
        for part in self._parts(len(flat)):
            yield self._chunk(flat[part] @ weight.t(), targets[part]).losses

    def _parts(self, num_tokens: int) -> Iterator[slice]:
        step = max(1, CHUNK_ELEMENTS // self.handle.placement.tp_local_shape[0])
        return (slice(at, at + step) for at in range(0, num_tokens, step))

    def _chunk(self, logits: Tensor, targets: Tensor) -> _Chunk:
        """Losses of the logits [c, V] for ``targets`` [c]; softmax over all TP ranks' V, in fp32."""
        tp = self.region.group
        logits = logits.float()
        trained = targets != IGNORE
        local = targets - self.first_row
        here = trained & (local >= 0) & (local < logits.shape[1])
        index = local.masked_fill(~here, 0)[:, None]
        peak = tp.stack(logits.amax(-1), "loss maximum").amax(0)
        shifted = logits.sub_(peak[:, None])
        target_logit = shifted.gather(1, index)[:, 0].masked_fill(~here, 0)
        weights = shifted.exp_()
        sums = tp.sum_small(torch.stack([weights.sum(-1), target_logit]), "loss sums")
        losses = torch.where(trained, sums[0].log() - sums[1], 0)
        return _Chunk(losses, weights, trained / sums[0], index, here)


class _Chunk(NamedTuple):
    """``losses`` fp32 [c], and what their gradient is made of: ``weights`` [c, V], which ``scale`` [c] makes
    probabilities, and the ``column`` [c, 1] of the target where it is ``here`` [c]."""

    losses: Tensor
    weights: Tensor
    scale: Tensor
    column: Tensor
    here: Tensor

    def with_gradient(self) -> tuple[Tensor, Tensor]:
        """The losses, and the gradient of their sum with respect to the logits, [c, V], in the place of
        ``weights``."""
        grad = self.weights.mul_(self.scale[:, None])
        grad.scatter_add_(1, self.column, -self.here.to(grad.dtype)[:, None])
        return self.losses, grad
