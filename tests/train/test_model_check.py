"""A run whose model cannot be is refused before it starts, with where the values came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.config import ResolvedConfig, resolve
from rankloom.errors import UserError
from rankloom.train.preflight import check_before_start
from tests.train import runs


def refusal(resolved: ResolvedConfig) -> str:
    with pytest.raises(UserError) as refused:
        check_before_start(resolved)
    return str(refused.value)


def resolved_with(folder: Path, changes: dict[str, Any], **cli: object) -> ResolvedConfig:
    mapping: dict[str, dict[str, Any]] = runs.mapping(folder)
    mapping["model"] = {"config": {**mapping["model"]["config"], **changes}}
    return resolve(mapping, cli=cli, origin="run.yaml")


def folder_with(folder: Path, **changes: object) -> ResolvedConfig:
    """A run that starts from a model folder."""
    mapping: dict[str, dict[str, Any]] = runs.mapping(folder)
    start = folder / "start"
    start.mkdir()
    (start / "config.json").write_text(json.dumps({**mapping["model"]["config"], **changes}))
    return resolve({**mapping, "model": {"path": str(start)}}, origin="run.yaml")


def test_a_misspelt_key_names_its_source(tmp_path: Path) -> None:
    cli = {"model.config.num_layers": 3}
    assert refusal(resolved_with(tmp_path, {"hiden_size": 8}, **cli)).splitlines() == [
        "model.config.hiden_size is not a key of a llama config; did you mean hidden_size? "
        "(model section of run.yaml)",
        "model.config.num_layers is not a key of a llama config; did you mean num_hidden_layers? "
        "(--model.config.num_layers)",
    ]


def test_unknown_keys_of_other_peoples_files_pass(tmp_path: Path) -> None:
    check_before_start(folder_with(tmp_path, hiden_size=8))


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    message = refusal(resolved_with(tmp_path, {"rms_norm_eps": "abc"}))
    assert message.endswith("greater than 0.0, not 'abc' (model section of run.yaml)")
    message = refusal(folder_with(tmp_path, hidden_act="silly"))
    assert message.endswith(f"not 'silly' ({tmp_path}/start/config.json; model section of run.yaml)")


def test_sizes_name_all_they_came_from(tmp_path: Path) -> None:
    message = refusal(resolved_with(tmp_path, {}, **{"model.config.hidden_size": 33}))
    assert message.endswith(
        "not a multiple of num_attention_heads 2; try 32 or 36 "
        "(--model.config.hidden_size; model section of run.yaml)"
    )
    message = refusal(resolved_with(tmp_path, {"intermediate_size": 33}))
    assert message.endswith("allowed: 1 (parallel section of run.yaml; model section of run.yaml)")


def test_a_vocabulary_too_small_for_a_tokenizer(tmp_path: Path) -> None:
    message = refusal(resolved_with(tmp_path, {"vocab_size": 10}))
    assert message == (
        "model.config.vocab_size 10 is too small to train a tokenizer: 256 bytes + 6 special tokens = 262; "
        "use at least 262 (model section of run.yaml)"
    )
    check_before_start(folder_with(tmp_path, vocab_size=10))  # the folder has its own tokenizer


def test_an_empty_model_config_has_no_family(tmp_path: Path) -> None:
    mapping: dict[str, dict[str, Any]] = {**runs.mapping(tmp_path), "model": {"config": {}}}
    message = refusal(resolve(mapping, origin="run.yaml"))
    assert message.startswith("the model's config has no model_type")
    assert message.endswith("(model section of run.yaml)")


def test_a_vocabulary_that_tp_cannot_cut_is_refused(tmp_path: Path) -> None:
    mapping: dict[str, dict[str, Any]] = runs.mapping(tmp_path)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    start = tmp_path / "start"
    start.mkdir()
    config = {**mapping["model"]["config"], **heads, "vocab_size": 9}
    config.pop("head_dim", None)
    (start / "config.json").write_text(json.dumps(config))
    mapping |= {
        "model": {"path": str(start)},
        "parallel": {"tensor_model_parallel_size": 4},
        "cluster": {"world_size": 4},
    }
    message = refusal(resolve(mapping, origin="run.yaml"))
    assert message.startswith(
        "vocab_size 9 leaves the last of tensor_model_parallel_size 4 ranks without a row"
    )
    assert "parallel section of run.yaml" in message
