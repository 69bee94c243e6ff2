"""What can be known to be wrong before any rank starts, without torch: model, data file, output folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rankloom.config import ResolvedConfig, refuse_for_training
from rankloom.errors import UserError
from rankloom.plan import ModelSpec
from rankloom.records import PYTHON_DOCS, load_records

__all__ = ["check_before_start"]

_LARGEST_READ_BYTES = 64 * 2**20  # a larger file is read once only, by the ranks
_SOME_VOCAB_SIZE = 256  # a model without one gets the tokenizer's, which is not known yet


def check_before_start(resolved: ResolvedConfig) -> None:
    """Raises UserError for a setting, model, data file or folder that training would stumble over."""
    refuse_for_training(resolved)
    _check_model(resolved)
    _check_data(resolved)
    for key, folder in _output_folders(resolved).items():
        _check_writable(key, folder)


def _check_model(resolved: ResolvedConfig) -> None:
    config = resolved.model.config or read_model_config(resolved)
    vocab_size = None if config.get("vocab_size") else _SOME_VOCAB_SIZE
    spec = ModelSpec.from_config(config, vocab_size=vocab_size)
    spec.refuse_tensor_parallel(resolved.parallel.tensor_model_parallel_size)


def read_model_config(resolved: ResolvedConfig) -> Mapping[str, object]:
    """The content of ``config.json`` in the folder ``model.path``. Raises UserError without one."""
    folder = Path(str(resolved.model.path))
    file = folder / "config.json"
    where = resolved.where("model.path")
    if not folder.is_dir():
        raise UserError(f"model.path {folder} is not a folder; it must hold a Hugging Face model ({where})")
    if not file.is_file():
        raise UserError(
            f"model.path {folder} holds no config.json; it must hold a Hugging Face model ({where})"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error} ({where})") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold a JSON object ({where})")
    return content


def _check_data(resolved: ResolvedConfig) -> None:
    train = str(resolved.data.train)
    if train == PYTHON_DOCS:
        return
    file = Path(train)
    if not file.is_file() or file.stat().st_size <= _LARGEST_READ_BYTES:
        load_records(train, bad_records=resolved.data.bad_records)


def _output_folders(resolved: ResolvedConfig) -> dict[str, Path]:
    return {
        "checkpoint.dir": Path(resolved.checkpoint.dir),
        "logging.metrics": Path(str(resolved.logging.metrics)).parent,
    }


def _check_writable(key: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{key}: the folder {folder} cannot be made: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{key}: the folder {folder} is not writable")
