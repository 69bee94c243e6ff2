from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankloom.errors import UserError
from rankloom.train.preflight import check_before_start
from tests.train import runs


def refusal(folder: Path, **settings: object) -> str:
    with pytest.raises(UserError) as caught:
        check_before_start(runs.config(folder, **settings))
    return str(caught.value)


def test_a_good_config_passes(tmp_path: Path) -> None:
    check_before_start(runs.config(tmp_path))


def test_a_missing_model_folder(tmp_path: Path) -> None:
    message = refusal(tmp_path, **{"model.config": None, "model.path": str(tmp_path / "nowhere")})
    assert "nowhere is not a folder" in message
    assert "--model.path" in message


def test_a_model_folder_without_a_config(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path, **{"model.config": None, "model.path": str(tmp_path)})


def test_a_model_that_tensor_parallelism_cannot_cut(tmp_path: Path) -> None:
    model = dict(runs.mapping(tmp_path)["model"]["config"], num_attention_heads=1)  # type: ignore[call-overload]
    (tmp_path / "config.json").write_text(json.dumps(model))
    message = refusal(tmp_path, **{"model.config": None, "model.path": str(tmp_path)})
    assert "tensor_model_parallel_size 2 does not divide" in message


def test_a_bad_line_of_the_data_file(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n{"mess\n'
    )
    message = refusal(tmp_path, **{"data.train": str(file)})
    assert "chats.jsonl" in message
    assert "2" in message


def test_a_missing_data_file(tmp_path: Path) -> None:
    assert "nothing.jsonl" in refusal(tmp_path, **{"data.train": str(tmp_path / "nothing.jsonl")})


def test_what_training_cannot_do_yet(tmp_path: Path) -> None:
    assert "checkpoint.save_every 5" in refusal(tmp_path, **{"checkpoint.save_every": 5})


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refusal(tmp_path, **{"checkpoint.dir": str(tmp_path / "file" / "run")})
