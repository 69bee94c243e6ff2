"""What one rank of a run can do, whatever started it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.data.delivery import Delivery
from rankloom.data.prepare import RunData
from rankloom.errors import RunError
from rankloom.models import Rows, ShardedModel, export, verify_copies
from rankloom.optim import ShardedAdamW
from rankloom.train.assemble import build_batches

__all__ = ["StepOutcome", "Worker"]


@dataclass(frozen=True)
class StepOutcome:
    """One optimizer step, equal on all ranks but for ``loader_wait_s``: seconds that this rank waited for its
    lane's rows to be read. ``loss`` is before the update, ``grad_norm`` before clipping; where one of them is
    not finite nothing was updated and ``bad_lanes`` names the lanes whose own loss is not."""

    loss: float
    grad_norm: float
    valid_tokens: int
    bad_lanes: tuple[int, ...] = ()
    loader_wait_s: float = 0.0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Worker:
    """Model, optimizer and lane of one rank. Every method is a collective of all ranks."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        comm: Communicator,
        data: RunData,
        *,
        model: ShardedModel,
        optimizer: ShardedAdamW,
        activity: Activity,
    ) -> None:
        self._comm = comm
        self._data = data
        self._model = model
        self._optimizer = optimizer
        self._activity = activity
        self.delivery = Delivery(
            comm,
            micro_batch_size=resolved.train.micro_batch_size,
            sequence_length=resolved.data.max_seq_length,
        )
        self.batches = build_batches(resolved, comm, data, is_owner=self.delivery.is_owner)

    def close(self) -> None:
        """Ends reading ahead."""
        self.batches.close()

    def verify_data(self, step0: int) -> None:
        """Compares the data's fingerprint and what is in the rows of the first step over all ranks. Raises
        RunError."""
        mine = torch.tensor([int(self._data.fingerprint[:15], 16)], device=self._comm.device)
        told = self._comm["world"].stack(mine, "compare the data").flatten().tolist()
        for rank, fingerprint in zip(self._comm["world"].ranks, told, strict=True):
            if fingerprint != told[0]:
                raise RunError(
                    f"rank {rank} ({self._comm.layout.coords(rank).describe()}) has other data than rank "
                    f"{self._comm['world'].ranks[0]}: file, tokenizer or data settings differ between them"
                )
        self.batches.verify(step0)

    def step(self, step0: int, *, lr: float) -> StepOutcome:
        """Trains on the global batch of step ``step0`` (from 0)."""
        sums, wait_s = self._accumulate(step0)
        self._activity.phase = f"step {step0 + 1}: reducing gradients"
        total = self._comm["gtp_remat_replica"].sum_small(sums, "loss")
        loss, num_tokens = total[0].item(), int(total[1].item())
        if num_tokens != (planned := self.batches.facts(step0).counts.valid_tokens):
            raise RunError(f"step {step0 + 1} trained on {num_tokens} tokens, its rows have {planned}")
        divisor = max(1, num_tokens)
        self._optimizer.finish_reductions()
        norm = self._optimizer.gradient_norm(divisor)
        outcome = StepOutcome(loss / divisor, norm, num_tokens, loader_wait_s=wait_s)
        if not outcome.finite:
            return StepOutcome(outcome.loss, norm, num_tokens, self._lanes_not_finite(sums), wait_s)
        self._activity.phase = f"step {step0 + 1}: updating parameters"
        self._optimizer.step(lr=lr, num_tokens=divisor, norm=norm)
        return outcome

    def _accumulate(self, step0: int) -> tuple[torch.Tensor, float]:
        """Forward and backward of all microbatches; this rank's loss sum and number of trained tokens, fp64
        [2], and the seconds that reading held it up."""
        self._activity.phase = f"step {step0 + 1}: waiting for the rows of lane {self.batches.lane}"
        expected = self.batches.rows(step0)
        read, wait_s = self.batches.read(step0)
        sums = torch.zeros(2, dtype=torch.float64, device=self._comm.device)
        for m, (microbatch, rows) in enumerate(zip(read, expected, strict=True)):
            self._activity.phase = f"step {step0 + 1}: microbatch {m + 1} of {len(expected)}"
            tokens = Rows(*self.delivery.deliver(microbatch, rows))
            loss, valid = self._model.forward_backward(tokens, first=m == 0, last=m == len(expected) - 1)
            sums += torch.stack([loss, valid.double()])
        return sums, wait_s

    def _lanes_not_finite(self, sums: torch.Tensor) -> tuple[int, ...]:
        flags = self._comm["world"].stack(sums[:1], "which lane is not finite").flatten().tolist()
        layout = self._comm.layout
        ranks = zip(self._comm["world"].ranks, flags, strict=True)
        return tuple(sorted({layout.lane(rank) for rank, loss in ranks if not math.isfinite(loss)}))

    def meet(self, what: str) -> None:
        """Returns once all ranks have come here."""
        self._comm["world"].stack(torch.zeros(1, device=self._comm.device), what)

    def verify_copies(self) -> None:
        """Compares all copies of all parameters. Raises RunError naming a parameter and two ranks that
        differ."""
        self._activity.phase = "comparing copies of parameters"
        verify_copies(self._model)

    def export(self, folder: Path) -> None:
        """Writes the model as a Hugging Face folder from the first rank."""
        self._activity.phase = "exporting the model"
        export(self._model, folder, tokenizer=self._data.tokenizer)
