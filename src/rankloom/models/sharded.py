"""A Hugging Face causal language model whose weights are cut by a plan, and one microbatch's work with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig

from rankloom.comm import Communicator
from rankloom.context import ATTENTION_NAME, ContextSlices, ContextTokens, attention_forward, segments_of_row
from rankloom.errors import UserError
from rankloom.models.wiring import first_vocabulary_row, wire
from rankloom.plan import ModelPlan
from rankloom.plan.gathers import evaluation_visits, training_visits
from rankloom.weights import (
    IGNORE,
    GatherSchedule,
    GradientReducer,
    SmallUnit,
    TensorParallelRegion,
    VocabularyHead,
    WeightHandle,
    WeightUnit,
)

__all__ = ["Rows", "ShardedModel"]


@dataclass(frozen=True)
class Rows:
    """Whole rows of a microbatch of one lane, int64 [B, S] each; labels are shifted already, IGNORE where
    untrained."""

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    document_ids: Tensor


class ShardedModel:
    """``units`` (gather units) and ``small`` hold all parameters of this rank; nothing else of the model has
    storage.

    ``dtype`` is that of stored and gathered weights. All ranks of the layout construct theirs alike.
    """

    def __init__(
        self,
        plan: ModelPlan,
        config: PreTrainedConfig,
        comm: Communicator,
        *,
        dtype: torch.dtype,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.plan = plan
        self.comm = comm
        self.dtype = dtype
        self.config = config
        self.module = _empty_model(config, dtype, comm.device)
        users = {p.name: 1 for unit in plan.weights for p in unit.placements}
        if plan.spec.tie_word_embeddings:
            users["model.embed_tokens.weight"] = 2
        self.units = [
            WeightUnit(u, comm, dtype=dtype, num_users={p.name: users[p.name] for p in u.placements})
            for u in plan.weights
        ]
        self.small = SmallUnit(plan.small, comm, dtype=dtype, partial_numel=plan.small_partial_numel)
        self.schedule = GatherSchedule(
            self.units, training_visits=training_visits(plan), evaluation_visits=evaluation_visits(plan)
        )
        self.reducer = GradientReducer()
        self._region = TensorParallelRegion(comm["tp"], plan.layout.sequence_parallel)
        handles = {
            p.name: WeightHandle(unit, p.name, self.schedule, self.reducer)
            for unit in self.units
            for p in unit.plan.placements
        }
        wire(self.module, plan, handles=handles, small=self.small, region=self._region)
        head = handles["model.embed_tokens.weight" if plan.spec.tie_word_embeddings else "lm_head.weight"]
        self._head = VocabularyHead(head, self._region, first_vocabulary_row(head.placement, self._region))
        if gradient_checkpointing:
            self.module.gradient_checkpointing_enable({"use_reentrant": False})
        self.module.train()

    @property
    def stores(self) -> tuple[WeightUnit | SmallUnit, ...]:
        """Everything that holds parameters."""
        return (*self.units, self.small)

    def forward_backward(self, rows: Rows, *, first: bool, last: bool) -> tuple[Tensor, Tensor]:
        """One microbatch: gradients are added to what the units hold (or overwrite it, in the ``first`` of a
        step).

        Returns this context rank's sum of token losses (fp64) and its number of trained tokens, both equal
        over tp."""
        self.small.begin(first=first)
        self.schedule.begin("train")
        self.reducer.begin(first=first, last=last)
        labels, hidden = self._hidden(rows)
        loss, grad = self._head.loss_and_gradient(hidden, labels)
        torch.autograd.backward(hidden, grad)
        self.reducer.drain()
        self.schedule.end()
        return loss, (labels != IGNORE).sum()

    def evaluate(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Sum of token losses and number of trained tokens of a microbatch, as `forward_backward` returns
        them; no gradients, and nothing that a model does in training alone."""
        labels, loss = self._forward(rows, self._head.loss)
        return loss, (labels != IGNORE).sum()

    def log_probabilities(self, rows: Rows) -> Tensor:
        """The log-probability of the label of each token of this context rank, given what stands before it in
        its document: fp32 [B, S / C], 0 where the label is IGNORE, equal over tp. `whole_rows` joins them.

        As in `evaluate`, all ranks that share weights come here together."""
        return self._forward(rows, self._head.log_probabilities)[1]

    @torch.no_grad()
    def _forward(self, rows: Rows, of_head: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Local labels, and what ``of_head`` makes of the hidden states and them."""
        self.small.settle()
        self.module.eval()
        self.schedule.begin("evaluate")
        labels, hidden = self._hidden(rows)
        found = of_head(hidden, labels)
        self.schedule.end()
        self.module.train()
        return labels, found

    def _hidden(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Local labels and the output of the last norm, [B, S / C / SP, H]."""
        context = self.comm["context"]
        slices = ContextSlices(rows.input_ids.shape[1], context.size)
        documents = rows.document_ids.cpu().numpy().astype(np.int32)
        tokens = ContextTokens(
            context, slices, [segments_of_row(row, slices, rank=context.index) for row in documents]
        )
        ids, labels, positions = (
            slices.take(t, context.index) for t in (rows.input_ids, rows.labels, rows.position_ids)
        )
        out = self.module.model(
            input_ids=ids, position_ids=positions, use_cache=False, rankloom_tokens=tokens
        )
        return labels, out.last_hidden_state


def _empty_model(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """The model on the meta device, with real rotary tables."""
    config = copy.deepcopy(config)
    AttentionInterface.register(ATTENTION_NAME, attention_forward)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME, dtype=dtype)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"transformers can make no model of its config: {reason}") from error
    for parent in model.modules():
        for name, child in parent.named_children():
            if any(True for _ in child.buffers(recurse=False)):
                with torch.device(device):
                    setattr(parent, name, type(child)(config=config))
    return model
