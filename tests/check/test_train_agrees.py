"""``train`` refuses what ``check`` calls an error, in the same words, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankloom.check import look_at
from rankloom.config import load
from rankloom.config.examine import examine
from rankloom.config.resolved import read_mapping
from rankloom.errors import UserError
from rankloom.train.preflight import check_before_start
from tests.check.jobs import CHAT, LLAMA, trained

PARALLEL = "parallel"
BAD: dict[str, Mapping[str, Mapping[str, object]]] = {
    "nothing": {},
    "an unknown key": {"train": {"learning_rte": 1}},
    "a value that is not allowed": {"train": {"micro_batch_size": 0}, "optimizer": {"lr": -1}},
    "shards": {PARALLEL: {"tensor_parallel_num_weight_shards": 3}},
    "a batch": {"train": {"global_batch_size": 3}},
    "an evaluation batch": {"train": {"eval_batch_size": 3}},
    "a length": {"data": {"max_seq_length": 7}, PARALLEL: {"context_parallel_size": 2}},
    "heads": {PARALLEL: {"tensor_model_parallel_size": 4}, "cluster": {"world_size": 4}},
    "stages": {PARALLEL: {"pipeline_model_parallel_size": 2}},
    "no end": {"train": {"max_steps": None}},
    "two ends": {"train": {"epochs": 1}},
    "no validation data": {"train": {"eval_every": 1}},
    "no checkpoint there": {"checkpoint": {"resume": "nowhere"}},
    "a schedule": {"schedule": {"min_lr": 1}},
    "a model": {"model": {"config": {**LLAMA, "num_hiden_layers": 3}}},
    "no model there": {"model": {"config": None, "path": "nowhere"}},
    "data": {"data": {"train": "bad.jsonl"}},
    "no data there": {"data": {"train": "nowhere.jsonl"}},
    "metrics": {"logging": {"metrics": "bad.jsonl"}},
    "outputs": {"checkpoint": {"dir": "bad.jsonl/x"}},
    "several": {
        "data": {"train": "bad.jsonl"},
        "checkpoint": {"resume": "nowhere", "dir": "bad.jsonl/x"},
        "model": {"config": {**LLAMA, "num_hiden_layers": 3}},
    },
}
ONLY_WARNED: dict[str, Mapping[str, Mapping[str, object]]] = {
    "bad lines that are skipped": {"data": {"train": "bad.jsonl", "bad_records": "skip"}},
    "idle GPUs": {"cluster": {"gpus_per_node": 8, "device": "auto"}},
}


def both(
    folder: Path, changes: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """The errors of check, and the lines of the refusal by train."""
    monkeypatch.chdir(folder)
    (folder / "bad.jsonl").write_text(CHAT + "nope\n")
    (folder / "run.yaml").write_text(yaml.safe_dump(trained(2, **changes)))
    report = look_at(examine(read_mapping("run.yaml"), origin="run.yaml"))
    errors = [finding.text for finding in report.findings if finding.severity == "error"]
    try:
        check_before_start(load("run.yaml"))
    except UserError as error:
        return errors, str(error).splitlines()
    return errors, []


@pytest.mark.parametrize("what", BAD)
def test_train_refuses_what_check_calls_an_error(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, refused = both(tmp_path, BAD[what], monkeypatch)
    assert bool(refused) == (what != "nothing")
    assert sorted(refused) == sorted(errors)
    assert not (tmp_path / "runs").exists() or what == "nothing"


def test_settings_come_before_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"data": {"train": "bad.jsonl"}, PARALLEL: {"tensor_parallel_num_weight_shards": 3}}
    errors, refused = both(tmp_path, changes, monkeypatch)
    assert len(errors) == 2
    assert refused == errors[:1]  # nothing else of a config that does not resolve is looked at


@pytest.mark.parametrize("what", ONLY_WARNED)
def test_train_starts_with_what_is_a_warning(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert both(tmp_path, ONLY_WARNED[what], monkeypatch) == ([], [])
