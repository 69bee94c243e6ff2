from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rankloom.config import load
from rankloom.errors import UserError
from rankloom.plan.exported import mark_exported
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


def test_a_checkpoint_to_resume_from_that_is_not_there(tmp_path: Path) -> None:
    message = refusal(tmp_path, **{"checkpoint.resume": str(tmp_path / "nowhere")})
    assert "nowhere" in message
    assert "auto, never, or a checkpoint" in message


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refusal(tmp_path, **{"checkpoint.dir": str(tmp_path / "file" / "run")})


def test_a_metrics_file_that_is_none_is_refused_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("do not lose this\n")
    message = refusal(tmp_path, **{"logging.metrics": str(file)})
    assert "notes.txt is not a metrics file" in message
    assert "--logging.metrics" in message
    assert file.read_text() == "do not lose this\n"


def test_a_metrics_file_of_an_earlier_run_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for text in ("", json.dumps(runs.metrics(1)) + '\n{"step": 2, "lo'):
        file.write_text(text)
        check_before_start(runs.config(tmp_path, **{"logging.metrics": str(file)}))
        assert file.read_text() == text


def test_the_metrics_file_is_none_of_the_inputs(tmp_path: Path) -> None:
    config, data = tmp_path / "run.yaml", tmp_path / "chats.jsonl"
    data.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    config.write_text(yaml.safe_dump(runs.mapping(tmp_path)))
    for file, name in ((config, "is the config file"), (data, "is data.train")):
        settings = {"logging.metrics": str(tmp_path / "." / file.name), "data.train": str(data)}
        with pytest.raises(UserError, match=name):
            check_before_start(load(config, cli=settings))


def test_the_metrics_file_is_no_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path, **{"logging.metrics": str(tmp_path)})


@pytest.mark.parametrize("place", ["run/model", "run/model.old", "run/model/start", "."])
def test_a_model_folder_that_overlaps_with_the_start_is_refused(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(runs.mapping(tmp_path)["model"]["config"]))
    mark_exported(folder, runs.config(tmp_path).layout, version="1")
    message = refusal(tmp_path, **{"model.config": None, "model.path": str(folder)})
    assert "overlaps with model.path" in message
    assert (folder / "config.json").exists()


@pytest.mark.parametrize("name", ["model", "model.partial", "model.old"])
def test_a_folder_that_no_export_wrote_is_not_replaced(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run" / name
    folder.mkdir(parents=True)
    check_before_start(runs.config(tmp_path))  # empty
    (folder / "weights.bin").write_text("mine")
    assert f"{name} was not written by rankloom" in refusal(tmp_path)
    mark_exported(folder, runs.config(tmp_path).layout, version="1")
    check_before_start(runs.config(tmp_path))
