"""The learning rate as a function of consumed samples: an absolute position, so nothing depends on how often
or where it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["LearningRate"]


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up from 0 over ``warmup_samples``, then ``decay`` from ``peak`` to ``minimum`` by
    ``decay_samples`` (counted from the start, warm-up included)."""

    peak: float
    minimum: float
    decay: Literal["constant", "linear", "cosine"]
    warmup_samples: int
    decay_samples: int

    def at(self, consumed_samples: int) -> float:
        """The rate of the step that brings the count to ``consumed_samples``."""
        if consumed_samples < self.warmup_samples:
            return self.peak * consumed_samples / self.warmup_samples
        if self.decay == "constant":
            return self.peak
        span = max(1, self.decay_samples - self.warmup_samples)
        done = min(1.0, (consumed_samples - self.warmup_samples) / span)
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.minimum + (self.peak - self.minimum) * left
