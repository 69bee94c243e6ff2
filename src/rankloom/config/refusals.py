"""What the schema knows and training cannot do, or cannot start without: refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from rankloom.config.resolved import ResolvedConfig
from rankloom.errors import UserError

__all__ = ["refuse_for_training"]


def refuse_for_training(resolved: ResolvedConfig) -> None:
    """Raises UserError, one line for each setting that `rankloom train` has to refuse."""
    lines = [*_missing(resolved), *_unavailable(resolved)]
    if lines:
        raise UserError("\n".join(lines))


def _missing(resolved: ResolvedConfig) -> Iterator[str]:
    if resolved.model.path is None and resolved.model.config is None:
        yield (
            f"there is no model to train: set model.path to a Hugging Face folder, or model.config to train "
            f"one from scratch (model section of {resolved.origin})"
        )
    if resolved.data.train is None:
        yield (
            f"there is no data to train on: set data.train to a JSONL file of chats, or to python-docs "
            f"(data section of {resolved.origin})"
        )
    if resolved.train.max_steps is None and resolved.train.epochs is None:
        yield (
            f"there is no end to the run: set train.max_steps or train.epochs "
            f"(train section of {resolved.origin})"
        )


def _unavailable(resolved: ResolvedConfig) -> Iterator[str]:
    stages = resolved.parallel.pipeline_model_parallel_size
    save, evaluate = resolved.checkpoint.save_every, resolved.train.eval_every
    eval_batch = resolved.train.eval_batch_size
    validation, tensorboard = resolved.data.validation, resolved.logging.tensorboard
    wishes = (
        (stages > 1, "parallel.pipeline_model_parallel_size", stages, "training with pipeline stages", "1"),
        (save > 0, "checkpoint.save_every", save, "saving checkpoints during a run", "0"),
        (evaluate > 0, "train.eval_every", evaluate, "evaluation during a run", "0"),
        (eval_batch is not None, "train.eval_batch_size", eval_batch, "evaluation during a run", "null"),
        (validation is not None, "data.validation", validation, "evaluation on validation data", "null"),
        (tensorboard is not None, "logging.tensorboard", tensorboard, "writing for TensorBoard", "null"),
        (resolved.cluster.engine == "ray", "cluster.engine", "ray", "training on Ray", "local or torchrun"),
    )
    for wished, key, value, what, remedy in wishes:
        if wished:
            yield f"{key} {value}: {what} is not available yet; set it to {remedy} ({resolved.where(key)})"
