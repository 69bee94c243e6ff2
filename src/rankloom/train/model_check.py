"""What is wrong with the model of a run and can be told from its config alone, without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankloom.config import ResolvedConfig
from rankloom.errors import UserError
from rankloom.plan import ModelPlan, ModelSpec, refuse_unknown_fields
from rankloom.records.special_tokens import MIN_VOCAB_SIZE, refuse_small_vocabulary

__all__ = ["check_model", "model_config_place"]


def check_model(resolved: ResolvedConfig, config: Mapping[str, object]) -> None:
    """Checks ``config``: that of ``model.config``, or of the ``config.json`` in ``model.path``.

    Unknown keys are refused in ``model.config`` only: other people's files have all kinds of them.
    Raises UserError that ends with where the values came from.
    """
    try:
        spec = _spec(resolved, config)
    except UserError as error:
        raise UserError(_with_places(resolved, str(error))) from None
    tp = "parallel.tensor_model_parallel_size"
    try:
        ModelPlan.build(spec, resolved.layout)
    except UserError as error:
        places = [resolved.where(tp), model_config_place(resolved, str(error))]
        raise UserError(f"{error} ({'; '.join(dict.fromkeys(filter(None, places)))})") from None


def _spec(resolved: ResolvedConfig, config: Mapping[str, object]) -> ModelSpec:
    """The model's sizes; one without a vocabulary size gets the tokenizer's, which is not known yet."""
    from_scratch = resolved.model.path is None
    if from_scratch:
        refuse_unknown_fields(config)
    spec = ModelSpec.from_config(config, vocab_size=MIN_VOCAB_SIZE)
    if from_scratch:
        refuse_small_vocabulary(spec.vocab_size)
    return spec


def _with_places(resolved: ResolvedConfig, message: str) -> str:
    return "\n".join(f"{line} ({model_config_place(resolved, line)})" for line in message.splitlines())


def model_config_place(resolved: ResolvedConfig, message: str) -> str:
    """Where the model's config came from, or those of its keys that ``message`` speaks of."""
    if resolved.model.path is not None:
        where = resolved.where("model.path")
        return f"{resolved.model.path}/config.json" + (f"; {where}" if where else "")
    words = dict.fromkeys(re.findall(r"\w+", message.partition(";")[0]))  # after it comes what to try
    keys = [f"model.config.{word}" for word in words if f"model.config.{word}" in resolved.sources]
    return resolved.where(*keys) or resolved.where("model.config")
