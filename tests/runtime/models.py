"""Tiny models and rows of tokens for multi-rank tests, and the same step in one process with plain
transformers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rankloom.models import Rows, SeededParameters
from rankloom.plan import ModelSpec, ParameterSpec, Role

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama", "tie_word_embeddings": False},
    "llama_biases_tied": {
        **COMMON,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "qwen2": {k: v for k, v in COMMON.items() if k != "head_dim"}
    | {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3": {**COMMON, "model_type": "qwen3", "tie_word_embeddings": True},
    "mistral": {**COMMON, "model_type": "mistral", "tie_word_embeddings": False, "sliding_window": 11},
}
STD = 0.08
SEED = 11


class PretrainedLike(SeededParameters):
    """As fresh parameters, but with norms and biases that have been trained, so that every cut of them
    shows."""

    def __init__(self) -> None:
        super().__init__(SEED, std=STD)

    def whole(self, spec: ParameterSpec) -> Tensor:
        value = super().whole(spec)
        if value.ndim == 1:
            generator = torch.Generator().manual_seed(len(spec.name) * 1000 + sum(map(ord, spec.name)))
            value = value + 0.1 * torch.randn(value.shape, generator=generator)
        return value


@dataclass(frozen=True)
class Document:
    ids: tuple[int, ...]
    trained: tuple[bool, ...]


Row = tuple[Document, ...]  # the documents packed into one row


def hf_config(family: str) -> Any:
    config = dict(FAMILIES[family])
    return AutoConfig.for_model(config.pop("model_type"), **config)


def random_rows(num_rows: int, *, length: int, seed: int, vocab: int = 101) -> list[Row]:
    """Rows with one to four documents each, uneven trained spans, some padding; the last row trains on
    nothing."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(num_rows):
        lengths = rng.integers(3, length // 2, size=rng.integers(1, 4))
        documents, room = [], length
        for n in lengths.tolist():
            n = min(n, room)
            if n < 2:
                break
            room -= n
            trained = (rng.random(n) < rng.choice([0.2, 0.9])) & (i != num_rows - 1)
            documents.append(Document(tuple(rng.integers(0, vocab, n).tolist()), tuple(trained.tolist())))
        rows.append(tuple(documents))
    return rows


def tensor_rows(rows: Sequence[Row], length: int) -> Rows:
    """Whole rows as the model takes them, [B, length]; written here anew, without the package's own
    packing."""
    out = {
        k: torch.zeros(len(rows), length, dtype=torch.int64)
        for k in ("input_ids", "position_ids", "document_ids")
    }
    labels = torch.full((len(rows), length), -100)
    for b, row in enumerate(rows):
        at = 0
        for number, document in enumerate(row):
            n = len(document.ids)
            out["input_ids"][b, at : at + n] = torch.tensor(document.ids)
            out["position_ids"][b, at : at + n] = torch.arange(n)
            out["document_ids"][b, at : at + n] = number
            for i in range(n - 1):
                if document.trained[i + 1]:
                    labels[b, at + i] = document.ids[i + 1]
            at += n
        out["document_ids"][b, at:] = len(row)
        out["position_ids"][b, at:] = torch.arange(length - at)
    return Rows(labels=labels, **out)


@dataclass
class Trajectory:
    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    family: str
    steps: tuple[tuple[Row, ...], ...]  # the global batch of each step
    length: int
    micro_batch_size: int = 1
    clip_grad: float = 1.0
    lr: float = 3e-3
    weight_decay: float = 0.1
    dtype: str = "float32"
    gradient_checkpointing: bool = False


def reference(recipe: Recipe) -> Trajectory:
    """One process: plain transformers, each document on its own, torch AdamW and torch clipping."""
    config = hf_config(recipe.family)
    spec = ModelSpec.from_config(FAMILIES[recipe.family])
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager")
    source = PretrainedLike()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for p in spec.parameters:
            parameters[p.name].copy_(source.whole(p))
    small = {
        p.name
        for p in spec.parameters
        if p.role in (Role.NORM, Role.HEAD_NORM, Role.ROW_BIAS, Role.COLUMN_BIAS)
    }
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for n, p in parameters.items() if n not in small],
                "weight_decay": recipe.weight_decay,
            },
            {"params": [p for n, p in parameters.items() if n in small], "weight_decay": 0.0},
        ],
        lr=recipe.lr,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses, norms = [], []
    for rows in recipe.steps:
        loss, norm = _reference_step(model, optimizer, rows, recipe.clip_grad)
        losses.append(loss)
        norms.append(norm)
    return Trajectory(losses, norms, {n: p.detach().clone() for n, p in parameters.items()})


def _reference_step(model: Any, optimizer: Any, rows: Sequence[Row], clip_grad: float) -> tuple[float, float]:
    optimizer.zero_grad()
    documents = [d for row in rows for d in row if any(d.trained[1:])]
    num_tokens = sum(sum(d.trained[1:]) for d in documents)
    total = 0.0
    for document in documents:
        ids = torch.tensor(document.ids)
        targets = ids[1:].masked_fill(~torch.tensor(document.trained[1:]), -100)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        (loss / num_tokens).backward()
        total += loss.item()
    parameters = list(model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad if clip_grad > 0 else float("inf"))
    optimizer.step()
    return total / num_tokens, norm.item()
