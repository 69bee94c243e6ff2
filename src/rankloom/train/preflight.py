"""What can be known to be wrong before any rank starts, without torch: refused, with everything found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankloom.check import check_data, check_model, check_outputs, read_model_config
from rankloom.config import ResolvedConfig
from rankloom.config.energon import ENERGON
from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.config.refusals import refused_for_training
from rankloom.data.energon import require_energon
from rankloom.errors import UserError
from rankloom.train.sinks import check_sinks

__all__ = ["check_before_start"]


def check_before_start(resolved: ResolvedConfig) -> None:
    """Raises UserError, a line for everything that training would stumble over: settings, model, data,
    folders. The output folders are made."""
    examined = Examined.of(resolved)
    found = [
        *refused_for_training(resolved),
        *_model(examined),
        *check_data(examined),
        *check_outputs(examined),
        *check_sinks(resolved),
        *_energon(resolved),
    ]
    errors = [finding.text for finding in found if finding.severity == "error"]
    if errors:
        raise UserError("\n".join(errors))
    _make_folders(resolved)


def _model(examined: Examined) -> Iterator[Finding]:
    path = examined.value("model.path")
    if path is None:
        config = examined.value("model.config")
        if isinstance(config, dict):
            yield from check_model(examined, config)[1]
        return
    where = examined.where("model.path")
    try:
        config = read_model_config(Path(str(path)), what="model.path")
    except UserError as error:
        yield Finding("error", "model", str(error), ("model.path",), where)
        return
    yield from check_model(examined, config, file=f"{path}/config.json")[1]


def _energon(resolved: ResolvedConfig) -> Iterator[Finding]:
    """A finding where the library that the source of the data needs is not installed."""
    if resolved.data.source != ENERGON:
        return
    try:
        require_energon()
    except UserError as error:
        where = resolved.where("data.source")
        yield Finding("error", "data", str(error), ("data.source",), where)


def _make_folders(resolved: ResolvedConfig) -> None:
    metrics = Path(str(resolved.logging.metrics))
    for key, folder in (
        ("checkpoint.dir", Path(resolved.checkpoint.dir)),
        ("logging.metrics", metrics.parent),
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{key}: the folder {folder} cannot be made: {reason}") from error
