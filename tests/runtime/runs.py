"""Whole runs on pool ranks: a chat file, a config, and what each rank sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankloom.comm import Communicator
from rankloom.config import ResolvedConfig, resolve
from rankloom.train.loop import run_connected

WORDS = (
    "sun",
    "moon",
    "river",
    "stone",
    "cloud",
    "leaf",
    "ember",
    "frost",
    "sand",
    "tide",
    "hill",
    "lark",
    "fern",
)
TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.08,
    "vocab_size": 269,
    "max_position_embeddings": 128,
}


class Recorder:
    """A Reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.notes: list[str] = []

    def phase(self, name: str, seconds: float) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, *, max_steps: int, first_step: int) -> None: ...

    def step(self, metrics: Mapping[str, object]) -> None:
        self.rows.append(metrics)

    def finish(self, summary: Mapping[str, object]) -> None: ...


def write_chats(path: Path, *, count: int = 120, seed: int = 5) -> Path:
    """Chats of one or two turns with answers of very different lengths."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(count):
            messages = []
            for _ in range(rng.integers(1, 3)):
                messages.append({"role": "user", "content": " ".join(rng.choice(WORDS, rng.integers(1, 4)))})
                messages.append(
                    {"role": "assistant", "content": " ".join(rng.choice(WORDS, rng.integers(1, 5)))}
                )
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def settings(
    folder: Path, *, parallel: Mapping[str, Any], world_size: int, **sections: Any
) -> dict[str, Any]:
    """A config of ten steps on ``folder``/chats.jsonl."""
    base: dict[str, Any] = {
        "model": {"config": dict(TINY)},
        "parallel": dict(parallel),
        "data": {
            "train": str(folder / "chats.jsonl"),
            "max_seq_length": 96,
            "cache_dir": str(folder / "cache"),
        },
        "train": {"global_batch_size": 8, "max_steps": 10, "seed": 3},
        "optimizer": {"lr": 3e-3, "clip_grad": 1.0},
        "schedule": {"warmup_samples": 16},
        "cluster": {"world_size": world_size, "device": "cpu"},
        "checkpoint": {"dir": str(folder / "run")},
    }
    for name, values in sections.items():
        base[name] = {**base[name], **values}
    return base


def run(rank: int, world_size: int, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A whole run on this rank; its metrics rows, with the bytes that this rank sent."""
    resolved: ResolvedConfig = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    comm.verify()
    recorder = Recorder()
    run_connected(resolved, comm, reporter=recorder)
    comm.close()
    return recorder.rows
