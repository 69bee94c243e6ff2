"""check and train look at an Energon data set before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.check import look_at
from rankloom.config import resolve
from rankloom.config.examine import examine
from rankloom.data.energon import library
from rankloom.errors import UserError
from rankloom.train.preflight import check_before_start

CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
BAD = {"messages": [{"role": "user", "content": "a"}]}


def prepared(folder: Path, *contents: object) -> Path:
    """As ``energon prepare`` leaves a JSON Lines file."""
    lines = [(json.dumps(content) + "\n").encode() for content in contents]
    file = folder / "chats.jsonl"
    file.write_bytes(b"".join(lines))
    offsets = [sum(map(len, lines[:place])) for place in range(len(lines) + 1)]
    (folder / "chats.jsonl.idx").write_bytes(b"".join(o.to_bytes(8, "little") for o in offsets))
    return file


def config(folder: Path, **data: Any) -> dict[str, Any]:
    return {
        "model": {"config": {"model_type": "llama", "hidden_size": 16, "vocab_size": 512}},
        "data": {"source": "energon", "path": str(folder / "chats.jsonl"), **data},
        "train": {"global_batch_size": 4, "max_steps": 2},
        "checkpoint": {"dir": str(folder / "run")},
        "cluster": {"world_size": 4},
    }


def found(folder: Path, **data: Any) -> list[tuple[str, str]]:
    report = look_at(examine(config(folder, **data)))
    assert not any("no file is named" in line for line in report.not_looked_at)
    return [(f.severity, f.message) for f in report.findings if f.topic == "data"]


def test_a_prepared_data_set(tmp_path: Path) -> None:
    prepared(tmp_path, CHAT, CHAT)
    assert found(tmp_path) == []


def test_one_that_is_not_prepared(tmp_path: Path) -> None:
    file = prepared(tmp_path, CHAT)
    (tmp_path / "chats.jsonl.idx").unlink()
    ((severity, message),) = found(tmp_path)
    assert severity == "error"
    assert message.endswith(f"run: energon prepare {file}")
    with pytest.raises(UserError, match=r"run: energon prepare .*chats\.jsonl \(data section of config\)"):
        check_before_start(resolve(config(tmp_path)))


def test_bad_records_of_a_file(tmp_path: Path) -> None:
    file = prepared(tmp_path, CHAT, BAD)
    ((severity, message),) = found(tmp_path)
    assert severity == "error"
    assert message.startswith(f"{file}, line 2: no assistant turn: roles are user")
    ((severity, message),) = found(tmp_path, bad_records="skip")
    assert severity == "warning"


def test_energon_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, CHAT)
    monkeypatch.setattr(library, "ENERGON", "no-such-package")
    with pytest.raises(UserError) as refusal:
        check_before_start(resolve(config(tmp_path)))
    assert (
        'data.source energon needs no-such-package; install it with: pip install "rankloom[energon]" (data '
        "section of config)"
    ) in str(refusal.value)
