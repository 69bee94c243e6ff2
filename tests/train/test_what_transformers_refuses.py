"""What only transformers finds wrong with a model's config is the user's error too, named with its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from rankloom.config import ResolvedConfig, resolve
from rankloom.errors import UserError
from rankloom.models import ShardedModel
from rankloom.train.assemble import build_model, model_plan
from rankloom.train.preflight import check_before_start
from tests.train import runs


def run_with(folder: Path, **changes: object) -> ResolvedConfig:
    mapping: dict[str, dict[str, Any]] = runs.mapping(folder)
    mapping["model"] = {"config": {**mapping["model"]["config"], **changes}}
    return resolve(mapping, origin="run.yaml")


@pytest.mark.parametrize(("key", "value"), [("pretraining_tp", "a"), ("dtype", "float99")])
def test_a_value_its_configuration_class_refuses(tmp_path: Path, key: str, value: object) -> None:
    resolved = run_with(tmp_path, **{key: value})
    check_before_start(resolved)
    tokens = SimpleNamespace(pad_token_id=0, bos_token_id=None, eos_token_id=1)
    data: Any = SimpleNamespace(tokenizer=tokens)
    comm: Any = None  # not reached
    with pytest.raises(UserError) as refused:
        build_model(resolved, model_plan(resolved, vocab_size=512), comm, data)
    message = str(refused.value)
    assert message.startswith("transformers refuses the model's config: ")
    assert value in message
    assert message.endswith("(model section of run.yaml)")
    assert "\n" not in message


def test_a_config_it_can_make_no_model_of(tmp_path: Path) -> None:
    resolved = run_with(tmp_path)
    config = AutoConfig.for_model(**{**(resolved.model.config or {}), "hidden_act": "silly"})
    comm: Any = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"transformers can make no model of its config: KeyError: .*silly"):
        ShardedModel(model_plan(resolved, vocab_size=512), config, comm, dtype=torch.float32)
