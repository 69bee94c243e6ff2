"""Jobs of our own to look at, and the findings about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankloom.check import Report, look_at
from rankloom.config.examine import examine
from rankloom.config.findings import Finding

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


def look(mapping: Mapping[str, Any], *, cli: Mapping[str, Any] | None = None, **given: Any) -> Report:
    """A report on a config called run.yaml."""
    return look_at(examine(mapping, cli=cli, origin="run.yaml"), **given)


def world(size: int, **parallel: object) -> dict[str, dict[str, object]]:
    return {"cluster": {"world_size": size}, "parallel": dict(parallel)}


def trained(size: int = 2, **sections: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """A config that could be trained, but for its outputs."""
    config: dict[str, dict[str, object]] = {
        "model": {"config": LLAMA},
        "data": {"train": "python-docs"},
        "train": {"global_batch_size": 8, "max_steps": 2},
        "cluster": {"world_size": size, "device": "cpu"},
    }
    for name, body in sections.items():
        config[name] = {**config.get(name, {}), **body}
    return config


def told(report: Report, topic: str = "", *, severity: str = "") -> list[Finding]:
    return [f for f in report.findings if topic in ("", f.topic) and severity in ("", f.severity)]


def model_folder(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return folder
