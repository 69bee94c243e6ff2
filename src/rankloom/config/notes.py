"""What is allowed and yet may not be what was meant: said before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rankloom.config.findings import Finding
from rankloom.config.rampup import BatchSizes
from rankloom.errors import UserError

__all__ = ["notes_on"]

Value = Callable[[str], object]


def notes_on(value: Value, sources: Mapping[str, str]) -> Iterator[Finding]:
    """A note for each setting that will not do what it seems to say. ``value`` gives that of a dotted key."""
    yield from _long_warmup(value)
    yield from _long_wsd_decay(value)
    yield from _nothing_saved(value, sources)


def _long_warmup(value: Value) -> Iterator[Finding]:
    warmup, steps = value("schedule.warmup_samples"), value("train.max_steps")
    samples = _samples_of(value, steps) if isinstance(steps, int) else None
    if not isinstance(warmup, int) or warmup == 0 or samples is None:
        return
    keys = ("schedule.warmup_samples", "train.max_steps")
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


def _long_wsd_decay(value: Value) -> Iterator[Finding]:
    wsd, warmup, whole = (
        value(f"schedule.{name}") for name in ("wsd_decay_samples", "warmup_samples", "decay_samples")
    )
    if not (isinstance(wsd, int) and isinstance(warmup, int) and isinstance(whole, int)):
        return
    if whole < wsd + warmup:
        message = (
            f"schedule.wsd_decay_samples {wsd} is more than the {max(0, whole - warmup)} samples of the "
            "schedule after its warm-up: the learning rate decays in all of them"
        )
        yield Finding("note", "training", message, ("schedule.wsd_decay_samples",))


def _samples_of(value: Value, steps: int) -> int | None:
    """Rows of a run; None where its batch sizes are not known, or were refused."""
    batch, rampup = value("train.global_batch_size"), value("train.rampup_batch_size")
    if not isinstance(batch, int) or not (rampup is None or isinstance(rampup, tuple)):
        return None
    try:
        return BatchSizes(batch, rampup).samples_of(steps)
    except UserError:
        return None


def _nothing_saved(value: Value, sources: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of checkpoints in a run that saves none; defaults need no word about it, what somebody wrote
    does."""
    saves = ("checkpoint.save_every", "checkpoint.save_before", "checkpoint.time_limit")
    if any(value(key) for key in saves):
        return
    for key in ("checkpoint.keep", "checkpoint.keep_every", "checkpoint.background"):
        if sources.get(key) in ("file", "cli"):
            message = (
                f"{key} {value(key)}: no checkpoint is saved during the run, as checkpoint.save_every is 0"
            )
            yield Finding("note", "training", message, (key,))
