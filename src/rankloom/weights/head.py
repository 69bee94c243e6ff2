"""Output head and loss in one: logits exist for a few tokens and this rank's rows of the vocabulary only.

Legend: T tokens of this context rank, H hidden, V this rank's rows of the vocabulary, c tokens of a chunk.

The loss is a plain sum, so its gradient can be computed chunk by chunk while the logits are there: nothing of
size T x V is kept, and the head's weight is gathered once a microbatch. Source of the sums over vocabulary
slices: Megatron-LM (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

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
        step = max(1, CHUNK_ELEMENTS // self.handle.placement.tp_local_shape[0])
        for at in range(0, len(flat), step):
            part = slice(at, at + step)
            chunk_loss, grad_logits = self._chunk(flat[part] @ weight.t(), targets[part])
            loss += chunk_loss
            grad_logits = grad_logits.to(x.dtype)
            torch.mm(grad_logits, weight, out=grad[part])
            self.handle.add_gradient(grad_logits, flat[part])
        self.handle.gradient_written()
        return loss, self.region.collect(grad.view(x.shape))

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The sum alone, for evaluation."""
        x = self.region.spread(hidden.detach())
        flat, targets = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        weight = self.handle.weight()
        step = max(1, CHUNK_ELEMENTS // self.handle.placement.tp_local_shape[0])
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for at in range(0, len(flat), step):
            part = slice(at, at + step)
            total += self._chunk(flat[part] @ weight.t(), targets[part])[0]
        return total

    def _chunk(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss sum and gradient of the logits [c, V] for ``targets`` [c]; softmax over all TP ranks' V, in
        fp32."""
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
        loss = torch.where(trained, sums[0].log() - sums[1], 0).sum(dtype=torch.float64)
        grad = weights.mul_((trained / sums[0])[:, None])
        grad.scatter_add_(1, index, -here.to(grad.dtype)[:, None])
        return loss, grad
