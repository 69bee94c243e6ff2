"""What the schema knows and training cannot do, or cannot start without: refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankloom.config.energon import ENERGON, energon_problems
from rankloom.config.findings import Finding
from rankloom.config.overlay import section_place
from rankloom.config.resolved import ResolvedConfig
from rankloom.errors import UserError

__all__ = [
    "not_available",
    "refuse_for_training",
    "refused_for_training",
    "too_many_left",
    "without_end",
    "without_validation",
]

Value = Callable[[str], object]


def refuse_for_training(resolved: ResolvedConfig) -> None:
    """Raises UserError, one line for each setting that `rankloom train` has to refuse."""
    findings = refused_for_training(resolved)
    if findings:
        raise UserError("\n".join(finding.text for finding in findings))


def refused_for_training(resolved: ResolvedConfig) -> list[Finding]:
    """A finding for each setting that `rankloom train` has to refuse."""
    return [
        *_without_input(resolved.value, origin=resolved.origin),
        *without_end(resolved.value, origin=resolved.origin),
        *without_validation(resolved.value, where=resolved.where),
        *not_available(resolved.value, where=resolved.where),
        *too_many_left(resolved.value, where=resolved.where),
    ]


def _without_input(value: Value, *, origin: str) -> Iterator[Finding]:
    if value("model.path") is None and value("model.config") is None:
        message = (
            "there is no model to train: set model.path to a Hugging Face folder, or model.config to train "
            "one from scratch"
        )
        yield Finding("error", "training", message, ("model.path",), section_place("model", origin))
    if value("data.train") is None and value("data.source") != ENERGON:
        message = "there is no data to train on: set data.train to a JSONL file of chats, or to python-docs"
        yield Finding("error", "training", message, ("data.train",), section_place("data", origin))


def without_end(value: Value, *, origin: str) -> Iterator[Finding]:
    """A finding where nothing says when training ends. ``value`` gives that of a dotted key."""
    if value("train.max_steps") is None and value("train.epochs") is None:
        message = "there is no end to the run: set train.max_steps or train.epochs"
        yield Finding("error", "training", message, ("train.max_steps",), section_place("train", origin))


def without_validation(value: Value, *, where: Callable[[str], str]) -> Iterator[Finding]:
    """A finding where an evaluation is asked for and nothing says on what."""
    every = value("train.eval_every")
    if every and value("data.validation") is None and not value("data.validation_split"):
        message = (
            f"train.eval_every {every}: there is no validation data: set data.validation, or "
            "data.validation_split to a share of data.train"
        )
        yield Finding("error", "training", message, ("train.eval_every",), where("train.eval_every"))


def too_many_left(value: Value, *, where: Callable[[str], str]) -> Iterator[Finding]:
    """A finding where a restart may not even go on with all ranks."""
    least, number = value("cluster.min_world_size"), value("cluster.world_size")
    if isinstance(least, int) and isinstance(number, int) and least > number:
        message = (
            f"cluster.min_world_size {least} is more than cluster.world_size {number}; try {number} or less"
        )
        key = "cluster.min_world_size"
        yield Finding("error", "training", message, (key,), where(key))


def not_available(value: Value, *, where: Callable[[str], str]) -> Iterator[Finding]:
    """A finding for each setting whose part of training is not there yet, or does not go with the source of
    the data; ``where`` a setting came from."""
    wishes: tuple[tuple[str, Callable[[object], bool], str, str], ...] = (
        (
            "parallel.pipeline_model_parallel_size",
            lambda stages: isinstance(stages, int) and stages > 1,
            "training with pipeline stages",
            "1",
        ),
    )
    for key, is_wished, what, remedy in wishes:
        if is_wished(value(key)):
            message = f"{key} {value(key)}: {what} is not available yet; set it to {remedy}"
            yield Finding("error", "training", message, (key,), where(key))
    yield from energon_problems(value, where=where)
