"""What can be known to be wrong before any rank starts, without torch: model, data file, output folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rankloom.config import ResolvedConfig, refuse_for_training
from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS, load_records
from rankloom.train.model_check import check_model
from rankloom.train.outputs import check_outputs

__all__ = ["check_before_start"]

_LARGEST_READ_BYTES = 64 * 2**20  # a larger file is read once only, by the ranks


def check_before_start(resolved: ResolvedConfig) -> None:
    """Raises UserError for a setting, model, data file or folder that training would stumble over."""
    refuse_for_training(resolved)
    _check_model(resolved)
    _check_data(resolved)
    check_outputs(resolved)


def _check_model(resolved: ResolvedConfig) -> None:
    config = resolved.model.config
    check_model(resolved, config if config is not None else read_model_config(resolved))


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
