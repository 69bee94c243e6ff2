"""The loss on the validation data: the same layout, the same rows whatever the layout, no gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rankloom.comm import Communicator
from rankloom.config import ResolvedConfig
from rankloom.data import Dealer, LaneReader
from rankloom.data.delivery import Delivery
from rankloom.data.evaluation import EvaluationRows, evaluation_stream
from rankloom.data.prepare import RunData
from rankloom.errors import RunError
from rankloom.models import Rows, ShardedModel

__all__ = ["Evaluation", "Evaluator", "evaluation_rows", "is_due"]


@dataclass(frozen=True)
class Evaluation:
    """Mean loss over the trained tokens of all validation records, and their number; equal on all ranks."""

    loss: float
    tokens: int


def evaluation_rows(resolved: ResolvedConfig, data: RunData, *, lane: int) -> EvaluationRows | None:
    """What a lane evaluates; None where there is no validation data."""
    if data.validation is None:
        return None
    section = resolved.data
    stream = evaluation_stream(
        data.validation,
        max_seq_length=section.max_seq_length,
        packing=section.packing,
        packing_window=section.packing_window,
        seed=section.seed,
        batch_size=resolved.train.eval_batch_size or resolved.train.global_batch_size,
    )
    dealer = Dealer(
        resolved.layout.batch_parallel_size,
        resolved.train.micro_batch_size,
        data.validation.lengths,
        section.balance,
    )
    return EvaluationRows(stream, dealer=dealer, lane=lane, pad_token_id=data.pad_token_id)


def is_due(step: int, *, every: int, max_steps: int) -> bool:
    """Whether there is an evaluation after a step (from 1): after the last one always, ``every`` 0 or not."""
    return step == max_steps or (every > 0 and step % every == 0)


class Evaluator:
    """``rows`` are those of this rank's lane. Evaluating is a collective of all ranks."""

    def __init__(
        self, rows: EvaluationRows, comm: Communicator, *, delivery: Delivery, model: ShardedModel
    ) -> None:
        self._rows = rows
        self._comm = comm
        self._delivery = delivery
        self._model = model

    def evaluate(self, when: str) -> Evaluation:
        """Of the parameters as they are; ``when`` says in words after which step. Raises RunError where
        another number of tokens was evaluated than there are."""
        last = self._rows.num_batches - 1
        sums = torch.zeros(2, dtype=torch.float64, device=self._comm.device)
        if self._delivery.is_owner:
            with LaneReader(self._rows, last=last) as reader:
                for batch0 in range(last + 1):
                    sums += self._batch(batch0, reader, when)
        else:
            for batch0 in range(last + 1):
                sums += self._batch(batch0, None, when)
        self._comm.activity.phase = f"evaluation {when}: adding up"
        total = self._comm["gtp_remat_replica"].sum_small(sums, "evaluation loss")
        loss, tokens = total[0].item(), int(total[1].item())
        if tokens != self._rows.num_valid:
            raise RunError(
                f"evaluation {when} counted {tokens} trained tokens, the validation data has "
                f"{self._rows.num_valid}"
            )
        return Evaluation(loss / tokens, tokens)

    def _batch(self, batch0: int, reader: LaneReader | None, when: str) -> torch.Tensor:
        """This rank's loss sum and number of trained tokens, fp64 [2]."""
        self._comm.activity.phase = f"evaluation {when}: batch {batch0 + 1} of {self._rows.num_batches}"
        rounds = self._rows.rows(batch0)
        read = [None] * len(rounds) if reader is None else reader.take(batch0)[0]
        sums = torch.zeros(2, dtype=torch.float64, device=self._comm.device)
        for microbatch, expected in zip(read, rounds, strict=True):
            tokens = Rows(*self._delivery.deliver(microbatch, expected))
            loss, valid = self._model.evaluate(tokens)
            sums += torch.stack([loss, valid.double()])
        return sums
