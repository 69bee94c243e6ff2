"""What a run writes, and what it must not write over: its inputs, and what others wrote. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rankloom.config import ResolvedConfig
from rankloom.errors import UserError
from rankloom.plan.exported import folders_of_export, refuse_foreign_folders
from rankloom.records import PYTHON_DOCS
from rankloom.train.metrics import refuse_other_content

__all__ = ["check_outputs", "model_folder"]


def model_folder(resolved: ResolvedConfig) -> Path:
    """Where the trained model goes."""
    return Path(resolved.checkpoint.dir) / "model"


def check_outputs(resolved: ResolvedConfig) -> None:
    """Raises UserError where an output cannot be written, or would take the place of anything but the same
    output of an earlier run."""
    _check_writable("checkpoint.dir", Path(resolved.checkpoint.dir))
    _check_metrics(resolved, Path(str(resolved.logging.metrics)))
    _check_model_folder(resolved)


def _inputs(resolved: ResolvedConfig) -> Iterator[tuple[str, Path]]:
    if resolved.model.path is not None:
        yield "model.path", Path(resolved.model.path)
    if resolved.data.train not in (None, PYTHON_DOCS):
        yield "data.train", Path(str(resolved.data.train))
    if Path(resolved.origin).is_file():
        yield "the config file", Path(resolved.origin)


def _check_model_folder(resolved: ResolvedConfig) -> None:
    folders = folders_of_export(model_folder(resolved))
    for name, path in [*_inputs(resolved), ("logging.metrics", Path(str(resolved.logging.metrics)))]:
        for folder in folders:
            if _overlap(path, folder):
                where = resolved.where("checkpoint.dir") or "the default"
                raise UserError(
                    f"the trained model would replace {folder}, which overlaps with {name} {path}; set "
                    f"checkpoint.dir to another folder ({where})"
                )
    refuse_foreign_folders(*folders)


def _check_metrics(resolved: ResolvedConfig, file: Path) -> None:
    where = resolved.where("logging.metrics", "checkpoint.dir") or "the default"
    for name, path in _inputs(resolved):
        if file.resolve() == path.resolve():
            raise UserError(f"logging.metrics {file} is {name}; set it to another path ({where})")
    if file.is_dir():
        raise UserError(f"logging.metrics {file} is a folder; it must be a file ({where})")
    if not file.exists():
        _check_writable("logging.metrics", file.parent)
        return
    if not os.access(file, os.R_OK | os.W_OK):
        raise UserError(f"logging.metrics {file} cannot be read and written ({where})")
    try:
        refuse_other_content(file)
    except UserError as error:
        raise UserError(f"logging.metrics: {error} ({where})") from error


def _overlap(one: Path, other: Path) -> bool:
    one, other = one.resolve(), other.resolve()
    return one.is_relative_to(other) or other.is_relative_to(one)


def _check_writable(key: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{key}: the folder {folder} cannot be made: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{key}: the folder {folder} is not writable")
