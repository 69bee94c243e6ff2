"""A job on a few chats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rankloom.data.tokenizer import train_tokenizer
from tests.cli.inspecting import CHATS, write_chats
from tests.data.chats import chats


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with chats.jsonl, a model folder without weights, and run.yaml."""
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path / "chats.jsonl", CHATS)
    train_tokenizer(chats(30), max_vocab_size=300).save_pretrained("model")
    Path("model/config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    settings = {
        "model": {"path": "model"},
        "parallel": {"tensor_parallel_num_weight_shards": 2, "context_parallel_size": 2},
        "data": {"train": "chats.jsonl", "max_seq_length": 128},
        "train": {"global_batch_size": 4, "epochs": 2},
        "cluster": {"world_size": 4},
    }
    Path("run.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path
