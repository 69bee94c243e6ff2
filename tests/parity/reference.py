"""The same training in one process, with nothing but transformers and torch.

From rankloom it takes which records make up the rows of a step and, for a model drawn from a seed, the
parameters it starts with. It reads the chat file, renders and tokenises it, runs every document alone, sums
the token losses, divides by the number of trained tokens of the global batch, clips with torch and updates
with torch's AdamW. A model in bfloat16 has fp32 masters and fp32 sums of its documents' gradients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rankloom.config import ResolvedConfig
from rankloom.data.prepare import prepare
from rankloom.models import SeededParameters
from rankloom.plan import ModelSpec

__all__ = ["Trajectory", "reference"]

IGNORE = -100


@dataclass(frozen=True)
class Document:
    ids: Tensor  # [T]
    labels: Tensor  # [T - 1], what follows each of the first T - 1 tokens, IGNORE where that is not trained

    @property
    def num_trained(self) -> int:
        return int((self.labels != IGNORE).sum())


@dataclass(frozen=True)
class Trajectory:
    """Rows of the metrics, and the final weights by name; of a reference, also those at the start."""

    rows: list[dict[str, Any]]
    weights: dict[str, Tensor]
    start: dict[str, Tensor] = field(default_factory=dict)


Step = tuple[tuple[int, ...], ...]  # line numbers of each row; no lines in a filler


def reference(
    resolved: ResolvedConfig, tokenizer_folder: Path, *, steps: Sequence[Step] | None = None
) -> Trajectory:
    """Trains as ``resolved`` says, its layout and microbatches left aside; on ``steps`` where given."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    steps = _steps(resolved) if steps is None else steps
    documents = _documents(resolved, tokenizer, {line for step in steps for row in step for line in row})
    model = _model(resolved, tokenizer)
    start = _copy(model)
    num_tokens = sum(len(documents[line].ids) for step in steps for row in step for line in row)
    trainer = _Trainer(model, resolved, max_steps=len(steps), num_tokens=num_tokens)
    rows = [trainer.step([[documents[line] for line in row] for row in step]) for step in steps]
    return Trajectory(rows, _copy(model), start)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _steps(resolved: ResolvedConfig) -> list[Step]:
    data = prepare(resolved)
    count = resolved.train.max_steps or data.stream.num_steps(resolved.train.epochs or 0)
    lines = data.dataset.numbers.tolist()
    return [tuple(tuple(lines[r] for r in row.records) for row in data.stream.batch(i)) for i in range(count)]


def _documents(resolved: ResolvedConfig, tokenizer: Any, lines: set[int]) -> dict[int, Document]:
    """By physical line of the file, from 1."""
    text = Path(str(resolved.data.train)).read_text().splitlines()
    documents = {}
    for line in lines:
        encoded = tokenizer.apply_chat_template(
            json.loads(text[line - 1])["messages"],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        length = resolved.data.max_seq_length  # longer ones are here only if they are to be cut
        ids, trained = encoded["input_ids"][:length], encoded["assistant_masks"][:length]
        labels = [token if t else IGNORE for token, t in zip(ids[1:], trained[1:], strict=True)]
        documents[line] = Document(torch.tensor(ids), torch.tensor(labels))
    return documents


def _model(resolved: ResolvedConfig, tokenizer: Any) -> Any:
    dtype = getattr(torch, resolved.model.dtype)
    if resolved.model.path is not None:
        return AutoModelForCausalLM.from_pretrained(
            resolved.model.path, dtype=dtype, attn_implementation="eager"
        )
    given: dict[str, Any] = dict(resolved.model.config or {})
    spec = ModelSpec.from_config(given)
    config = AutoConfig.for_model(given.pop("model_type"), pad_token_id=tokenizer.pad_token_id, **given)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    start = SeededParameters(resolved.train.seed, std=config.initializer_range)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for p in spec.parameters:
            parameters.pop(p.name).copy_(start.whole(p))
    assert not parameters, f"not drawn: {list(parameters)}"
    return model


class _Trainer:
    """``masters`` are the fp32 parameters: the model's own, or copies of a model in another dtype."""

    def __init__(self, model: Any, resolved: ResolvedConfig, *, max_steps: int, num_tokens: int) -> None:
        self.model = model.train()
        self.resolved = resolved
        self.max_steps = max_steps
        named = dict(model.named_parameters())
        self.masters = {n: p if p.dtype is torch.float32 else p.detach().float() for n, p in named.items()}
        decayed = _decayed(model, resolved.optimizer.no_decay)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for n, p in self.masters.items() if n in decayed]},
                {"params": [p for n, p in self.masters.items() if n not in decayed], "weight_decay": 0.0},
            ],
            betas=resolved.optimizer.betas,
            eps=resolved.optimizer.eps,
            weight_decay=resolved.optimizer.weight_decay,
        )
        self.num_tokens = num_tokens
        self.consumed = dict.fromkeys(("consumed_samples", "consumed_chats", "consumed_tokens"), 0)

    def step(self, rows: Sequence[Sequence[Document]]) -> dict[str, Any]:
        """One update on a global batch; its metrics."""
        documents = [d for row in rows for d in row]
        self.consumed["consumed_samples"] += sum(len(row) > 0 for row in rows)
        self.consumed["consumed_chats"] += len(documents)
        self.consumed["consumed_tokens"] += sum(len(d.ids) for d in documents)
        lr = self._rate()
        num_trained = sum(d.num_trained for d in documents)
        gradients = {n: torch.zeros_like(p) for n, p in self.masters.items()}
        loss = math.fsum(self._document(d, gradients) for d in documents) / num_trained
        norm = self._update({n: g / num_trained for n, g in gradients.items()}, lr)
        return {"loss": loss, "grad_norm": norm, "lr": lr, "valid_tokens": num_trained, **self.consumed}

    def _rate(self) -> float:
        if self.resolved.schedule.warmup_tokens is None:
            return _rate(self.resolved, self.consumed["consumed_samples"], max_steps=self.max_steps)
        return _wsd_rate(self.resolved, self.consumed["consumed_tokens"], last=self.num_tokens)

    def _document(self, document: Document, gradients: Mapping[str, Tensor]) -> float:
        """Adds the gradient of the sum of a document's token losses to ``gradients``; returns that sum."""
        logits = self.model(input_ids=document.ids[None], use_cache=False).logits[0, :-1].float()
        loss = nn.functional.cross_entropy(logits, document.labels, ignore_index=IGNORE, reduction="sum")
        self.model.zero_grad()
        loss.backward()
        for name, parameter in self.model.named_parameters():
            gradients[name].add_(parameter.grad)
        return loss.item()

    def _update(self, gradients: Mapping[str, Tensor], lr: float) -> float:
        clip = self.resolved.optimizer.clip_grad
        for name, gradient in gradients.items():
            self.masters[name].grad = gradient
        norm = nn.utils.clip_grad_norm_(list(self.masters.values()), clip if clip > 0 else math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.masters[name])
        return norm.item()


def _decayed(model: nn.Module, no_decay: Sequence[str]) -> set[str]:
    """Weights of linears and embeddings decay, unless a glob is given: then all that matches none."""
    names = {name for name, _ in model.named_parameters()}
    if no_decay:
        return {name for name in names if not any(fnmatchcase(name, glob) for glob in no_decay)}
    modules = model.named_modules()
    return {f"{path}.weight" for path, m in modules if isinstance(m, nn.Linear | nn.Embedding)} & names


def _rate(resolved: ResolvedConfig, samples: int, *, max_steps: int) -> float:
    """Warm-up from 0 and decay to min_lr, over samples counted from the start of the run."""
    schedule, peak = resolved.schedule, resolved.optimizer.lr
    warmup, last = schedule.warmup_samples, schedule.decay_samples
    if last is None:
        last = max_steps * resolved.train.global_batch_size
    if samples < warmup:
        return peak * samples / warmup
    part = min(1.0, (samples - warmup) / (last - warmup))
    shape = {"constant": 1.0, "linear": 1.0 - part, "cosine": math.cos(part * math.pi / 2) ** 2}
    return schedule.min_lr + (peak - schedule.min_lr) * shape[schedule.decay]


def _wsd_rate(resolved: ResolvedConfig, tokens: int, *, last: int) -> float:
    """Warm-up from 0, then the peak, then 2 x 0.5^x - 1 of it, over tokens; down to 0."""
    schedule, peak = resolved.schedule, resolved.optimizer.lr
    warmup, decay = schedule.warmup_tokens or 0, schedule.wsd_decay_tokens or 0
    if tokens < warmup:
        return peak * tokens / warmup
    part = max(0.0, tokens - (last - decay)) / decay
    return peak * (2.0 ** (1 - part) - 1)
