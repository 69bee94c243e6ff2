"""``rankloom train`` before any rank starts: every refusal is one message and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rankloom.cli import main
from tests.train import runs


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(runs.mapping(tmp_path)))
    return file


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["train", *map(str, arguments)])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.count("rankloom train: ") == 1
    return err


def test_a_missing_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused(capsys, tmp_path / "nowhere.yaml")


def test_an_unknown_key_has_a_suggestion(capsys: pytest.CaptureFixture[str], config_file: Path) -> None:
    assert "train.max_steps" in refused(capsys, config_file, "--train.max_step", 4)


def test_a_missing_data_file(capsys: pytest.CaptureFixture[str], config_file: Path) -> None:
    assert "nothing.jsonl" in refused(capsys, config_file, "--data.train", "nothing.jsonl")


def test_pipeline_stages(capsys: pytest.CaptureFixture[str], config_file: Path) -> None:
    arguments = ("--parallel.pipeline_model_parallel_size", 2, "--cluster.world_size", 8)
    assert "pipeline" in refused(capsys, config_file, *arguments)
