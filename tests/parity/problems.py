"""What is trained in the parity tables: everything of a config but its layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.parity.own_tokenizer import write_tokenizer
from tests.runtime.runs import WORDS, settings, write_chats

__all__ = ["FAMILIES", "Problem", "from_folder", "from_seed", "prepare_folder"]

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.08,
    "vocab_size": 269,
    "max_position_embeddings": 128,
}
CLIP = 1.6  # below the first gradient norms of all families and above their last ones
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        **SIZES,
        "model_type": "llama",
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 4,
    },
    "llama_biases_tied": {
        **SIZES,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "qwen2": {**{k: v for k, v in SIZES.items() if k != "head_dim"}, "model_type": "qwen2"},
    "qwen3": {**SIZES, "model_type": "qwen3", "tie_word_embeddings": True},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 11},
}


@dataclass(frozen=True)
class Problem:
    """One training.

    Attributes:
        name: of its folder and its reference; problems that have the same reference may share it.
        family: of `FAMILIES`, with ``model`` on top.
        start: "seed", or "folder": one written by plain transformers, with a tokenizer of its own.
        sections: what differs from `runs.settings`.
        saved: arguments of `save_pretrained` for the folder.
        saved_dtype: of the weights in it.
    """

    name: str
    family: str
    start: str
    model: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_chats: int = 120
    saved: Mapping[str, Any] = field(default_factory=dict)
    saved_dtype: torch.dtype = torch.float32

    @property
    def model_config(self) -> dict[str, Any]:
        return {**FAMILIES[self.family], **self.model}

    def config(self, folder: Path, *, parallel: Mapping[str, Any], world: int, rows: int) -> dict[str, Any]:
        """The config of a run; ``folder`` as `prepare_folder` filled it."""
        sections = {k: dict(v) for k, v in self.sections.items()}
        sections["optimizer"] = {"clip_grad": CLIP, **sections.get("optimizer", {})}
        model = sections.setdefault("model", {})
        if self.start == "seed":
            model["config"] = self.model_config
        else:
            model |= {"path": str(folder / "start"), "config": None}
        sections["train"] = {"micro_batch_size": rows, **sections.get("train", {})}
        return settings(folder, parallel=parallel, world_size=world, **sections)


def from_seed(name: str, family: str = "llama", **changes: Any) -> Problem:
    """A problem whose model is drawn from the seed and whose tokenizer is trained."""
    return Problem(name, family, "seed", **changes)


def from_folder(name: str, family: str, **changes: Any) -> Problem:
    """A problem that starts from a model folder."""
    return Problem(name, family, "folder", **changes)


def prepare_folder(problem: Problem, folder: Path) -> None:
    """Writes chats.jsonl and, unless the model is drawn from a seed, the model folder ``start``."""
    write_chats(folder / "chats.jsonl", count=problem.num_chats)
    if problem.start != "seed":
        _write_model(problem, folder / "start", folder / "chats.jsonl")


def _write_model(problem: Problem, folder: Path, chats: Path) -> None:
    """As in a trained model, norms are not one and biases not zero: every cut of them shows, and no gradient
    of theirs is rounding noise alone, which Adam would make as large as any other."""
    config = dict(problem.model_config)
    torch.manual_seed(18)  # none of its first gradients is near Adam's eps, where rounding decides on a step
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
    model.to(problem.saved_dtype).save_pretrained(folder, **problem.saved)
    contents = [m["content"] for line in chats.read_text().splitlines() for m in json.loads(line)["messages"]]
    write_tokenizer(folder, [*contents, *WORDS], vocab_size=config["vocab_size"])
