"""What is allowed and yet may not be what was meant: said before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankloom.config.resolved import ResolvedConfig

__all__ = ["notes_on"]


def notes_on(resolved: ResolvedConfig) -> Iterator[str]:
    """One line for each setting that will not do what it seems to say."""
    yield from _long_warmup(resolved)
    yield from _nothing_saved(resolved)


def _long_warmup(resolved: ResolvedConfig) -> Iterator[str]:
    train, warmup = resolved.train, resolved.schedule.warmup_samples
    if train.max_steps is None or warmup == 0:
        return
    samples = train.max_steps * train.global_batch_size
    if warmup > samples:
        yield (
            f"schedule.warmup_samples {warmup} is longer than the run's {samples} samples: the learning rate "
            f"never reaches optimizer.lr"
        )
    elif warmup == samples:
        yield (
            f"schedule.warmup_samples {warmup} is all of the run's samples: the learning rate reaches "
            f"optimizer.lr in the last step only"
        )


def _nothing_saved(resolved: ResolvedConfig) -> Iterator[str]:
    """Checkpoints are not written or read yet; defaults need no word about it, what somebody wrote does."""
    checkpoint = resolved.checkpoint
    if checkpoint.resume == "auto" and _was_written(resolved, "checkpoint.resume"):
        yield "checkpoint.resume auto: nothing is resumed yet: a run starts at step 1"
    if _was_written(resolved, "checkpoint.keep"):
        yield f"checkpoint.keep {checkpoint.keep}: no checkpoint is written during a run yet, so none is kept"


def _was_written(resolved: ResolvedConfig, key: str) -> bool:
    return resolved.sources[key] in ("file", "cli")
