"""What is allowed and yet may not be what was meant: said before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rankloom.config.findings import Finding

__all__ = ["notes_on"]

Value = Callable[[str], object]


def notes_on(value: Value, sources: Mapping[str, str]) -> Iterator[Finding]:
    """A note for each setting that will not do what it seems to say. ``value`` gives that of a dotted key."""
    yield from _long_warmup(value)
    yield from _nothing_saved(value, sources)


def _long_warmup(value: Value) -> Iterator[Finding]:
    warmup, steps, batch = (
        value(key) for key in ("schedule.warmup_samples", "train.max_steps", "train.global_batch_size")
    )
    if not (isinstance(warmup, int) and isinstance(steps, int) and isinstance(batch, int)) or warmup == 0:
        return
    samples, keys = steps * batch, ("schedule.warmup_samples", "train.max_steps")
    if warmup > samples:
        message = (
            f"schedule.warmup_samples {warmup} is longer than the run's {samples} samples: the learning rate "
            f"never reaches optimizer.lr"
        )
        yield Finding("note", "training", message, keys)
    elif warmup == samples:
        message = (
            f"schedule.warmup_samples {warmup} is all of the run's samples: the learning rate reaches "
            f"optimizer.lr in the last step only"
        )
        yield Finding("note", "training", message, keys)


def _nothing_saved(value: Value, sources: Mapping[str, str]) -> Iterator[Finding]:
    """Checkpoints are not written or read yet; defaults need no word about it, what somebody wrote does."""
    written = [key for key in ("checkpoint.resume", "checkpoint.keep") if sources.get(key) in ("file", "cli")]
    if "checkpoint.resume" in written and value("checkpoint.resume") == "auto":
        message = "checkpoint.resume auto: nothing is resumed yet: a run starts at step 1"
        yield Finding("note", "training", message, ("checkpoint.resume",))
    if "checkpoint.keep" in written:
        message = (
            f"checkpoint.keep {value('checkpoint.keep')}: no checkpoint is written during a run yet, so none "
            "is kept"
        )
        yield Finding("note", "training", message, ("checkpoint.keep",))
