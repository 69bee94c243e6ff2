"""The model of a job, from its config alone: what makes no model, and what the layout cannot cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.errors import UserError
from rankloom.layout.arithmetic import nearest
from rankloom.plan import ModelPlan, ModelSpec, refuse_unknown_fields
from rankloom.records.jsonl import short_path
from rankloom.records.special_tokens import MIN_VOCAB_SIZE, refuse_small_vocabulary

__all__ = ["check_model", "model_config_place", "read_model_config"]

TP, PP = "parallel.tensor_model_parallel_size", "parallel.pipeline_model_parallel_size"


def _saved(path: Path) -> str:
    """A run's folder is no model, but what it holds may be one."""
    folders = (path / "model", *sorted(path.glob("step-" + "[0-9]" * 8))[-1:])
    models = [str(folder) for folder in folders if folder.is_dir()]
    return f", as {' or '.join(models)} may" if models else ""


def read_model_config(path: Path, *, what: str, or_file: bool = False) -> Mapping[str, object]:
    """The content of the ``config.json`` in a Hugging Face folder; ``or_file``: ``path`` may be it.

    ``what`` says where the path was written. Raises UserError where there is none.
    """
    name = f"{what} {short_path(path)}"
    try:
        file = path if or_file and path.is_file() else path / "config.json"
        if not (path.is_dir() or file == path):
            raise UserError(f"{name} is not a folder; it must hold a Hugging Face model")
        if not file.is_file():
            raise UserError(f"{name} holds no config.json; it must hold a Hugging Face model{_saved(path)}")
        content = json.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply to be a model's config") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object, and so no model's config")
    return content


def check_model(
    examined: Examined, config: Mapping[str, object], *, file: str = ""
) -> tuple[ModelSpec | None, list[Finding]]:
    """The parameters of the model, None where the config makes none, and everything wrong with it.

    ``file`` names the ``config.json`` that the config came from, "" for one written in ``model.config``.
    Unknown keys are refused in the latter only: other people's files have all kinds of them. Without a
    vocabulary size the model gets the tokenizer's, which is not known yet.
    """
    spec = None
    try:
        if not file:
            refuse_unknown_fields(config)
        spec = ModelSpec.from_config(config, vocab_size=None if file else MIN_VOCAB_SIZE)
        if not file:
            refuse_small_vocabulary(spec.vocab_size)
    except UserError as error:
        return None, [
            _finding(line, model_config_place(examined, line, file=file)) for line in str(error).splitlines()
        ]
    return spec, list(_cuts(examined, spec, file=file))


def _cuts(examined: Examined, spec: ModelSpec, *, file: str) -> Iterator[Finding]:
    """What the layout cannot cut. TP alone is looked at where there is no layout."""
    tp = examined.value(TP)
    try:
        if examined.layout is not None:
            ModelPlan.build(spec, examined.layout)
        elif isinstance(tp, int) and tp > 0:
            spec.refuse_tensor_parallel(tp)
    except UserError as error:
        places = [examined.where(TP), model_config_place(examined, str(error), file=file)]
        where = "; ".join(dict.fromkeys(filter(None, places)))
        yield Finding("error", "model", str(error), (TP,), where)
    stages = examined.value(PP)
    if isinstance(stages, int) and stages > 1 and spec.num_layers % stages:
        sizes = [n for n in range(1, spec.num_layers + 1) if spec.num_layers % n == 0]
        message = (
            f"num_hidden_layers {spec.num_layers} of the model is not a multiple of "
            f"pipeline_model_parallel_size {stages}; try {' or '.join(map(str, nearest(stages, sizes)))}"
        )
        places = [examined.where(PP), model_config_place(examined, message, file=file)]
        yield Finding("error", "model", message, (PP,), "; ".join(dict.fromkeys(filter(None, places))))


def _finding(message: str, where: str) -> Finding:
    return Finding("error", "model", message, ("model.config",), where)


def model_config_place(examined: Examined, message: str, *, file: str = "") -> str:
    """Where the model's config came from, or those of its keys that ``message`` speaks of."""
    if file:
        where = examined.where("model.path")
        return f"{file}; {where}" if where else file
    words = dict.fromkeys(re.findall(r"\w+", message.partition(";")[0]))  # after it comes what to try
    keys = [f"model.config.{word}" for word in words if f"model.config.{word}" in examined.sources]
    return examined.where(*keys) or examined.where("model.config")
