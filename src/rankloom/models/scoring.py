"""What a sharded model thinks of given sequences: log-probabilities of their tokens, and of them as a whole.

A sequence has a row of its own here, padded at its end to what the layout can cut; causal attention never
looks at the padding, so it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankloom.comm import Communicator
from rankloom.context import ContextSlices
from rankloom.errors import UserError
from rankloom.models.sharded import Rows, ShardedModel
from rankloom.plan import sequence_multiple
from rankloom.weights import IGNORE

__all__ = ["SequenceScore", "next_tokens", "sequence_log_probabilities", "sequence_score", "whole_rows"]

Floats = NDArray[np.float32]


class SequenceScore(NamedTuple):
    """``log_likelihood``: the sum over the ``num_tokens`` that count. ``head``: the value of a scalar head;
    always None, because the families that can be sharded are causal language models, which have none."""

    log_likelihood: float
    num_tokens: int
    head: float | None = None


def next_tokens(input_ids: Tensor, document_ids: Tensor) -> Tensor:
    """Labels [B, S] for all tokens of whole rows: what follows in the same document, IGNORE where it ends."""
    labels = torch.full_like(input_ids, IGNORE)
    inside = document_ids[:, 1:] == document_ids[:, :-1]
    labels[:, :-1] = torch.where(inside, input_ids[:, 1:], IGNORE)
    return labels


def whole_rows(local: Tensor, comm: Communicator, *, length: int) -> Tensor:
    """What the context ranks have of rows of ``length`` tokens, joined: [B, S / C, ...] to [B, S, ...] on
    every rank. A collective of the context group."""
    context = comm["context"]
    parts = context.stack(local, "join rows")
    return ContextSlices(length, context.size).join(parts, dim=1)


def sequence_log_probabilities(
    model: ShardedModel,
    sequences: Sequence[Sequence[int]],
    *,
    micro_batch_size: int,
    pad_token_id: int = 0,
) -> list[Floats]:
    """Of each sequence the log-probability of every token given those before it, fp32, as long as the
    sequence: that of the first token, which nothing stands before, is 0. The same on all ranks of a lane.

    ``sequences``: token ids, the same on all ranks of a lane. A collective of all ranks, whose lanes may have
    different numbers of sequences, also none. ``micro_batch_size`` sequences are worked on at once. Raises
    UserError for an id that is not in the vocabulary.
    """
    _refuse_unknown_ids(sequences, vocab_size=model.plan.spec.vocab_size)
    rounds = [sequences[at : at + micro_batch_size] for at in range(0, len(sequences), micro_batch_size)]
    group = model.comm["gtp_remat"]  # its ranks gather weights from each other, so they go the same way
    mine = torch.tensor([len(rounds)], device=model.comm.device)
    num_rounds = int(group.stack(mine, "number of rounds").max())
    found: list[Floats] = []
    for batch in [*rounds, *[()] * (num_rounds - len(rounds))]:
        rows = _rows(batch, sequence_multiple(model.plan.layout), pad_token_id, model.comm.device)
        local = model.log_probabilities(rows)
        whole = whole_rows(local, model.comm, length=rows.input_ids.shape[1]).cpu().numpy()
        shifted = np.pad(whole, ((0, 0), (1, 0)))  # from the token that predicts to the one predicted
        found += [row[: len(ids)] for ids, row in zip(batch, shifted, strict=False)]
    return found


def sequence_score(log_probabilities: Floats, counted: Sequence[bool] | None = None) -> SequenceScore:
    """The sum (in fp64) over the tokens that are ``counted``, by default all; the first token, which has no
    probability, never is."""
    mask = np.ones(len(log_probabilities), bool) if counted is None else np.array(counted, bool)
    assert len(mask) == len(log_probabilities), (len(mask), len(log_probabilities))
    mask[:1] = False
    return SequenceScore(float(log_probabilities[mask].sum(dtype=np.float64)), int(mask.sum()))


def _rows(sequences: Sequence[Sequence[int]], multiple: int, pad_token_id: int, device: torch.device) -> Rows:
    """A row for each sequence, and one of padding where there are none."""
    longest = max([1, *map(len, sequences)])
    shape = (max(1, len(sequences)), -(-longest // multiple) * multiple)
    ids = torch.full(shape, pad_token_id, device=device)
    documents = torch.ones(shape, dtype=torch.int64, device=device)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.int64)
        documents[row, : len(sequence)] = 0
    positions = torch.arange(shape[1], device=device).expand(shape)
    return Rows(ids, next_tokens(ids, documents), positions, documents)


def _refuse_unknown_ids(sequences: Sequence[Sequence[int]], *, vocab_size: int) -> None:
    for number, sequence in enumerate(sequences):
        ids = np.asarray(sequence, dtype=np.int64)
        if len(wrong := ids[(ids < 0) | (ids >= vocab_size)]):
            raise UserError(
                f"sequence {number} of the lane has token id {wrong[0]}; the vocabulary has {vocab_size}"
                f" tokens, with ids 0 to {vocab_size - 1}"
            )
