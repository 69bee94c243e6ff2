"""The learning rate as a function of consumed samples, or of consumed tokens: an absolute position, so
nothing depends on how often or where it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["LearningRate"]


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up from 0 over ``warmup_samples``, then ``decay`` from ``peak`` to ``minimum`` by
    ``decay_samples`` (counted from the start, warm-up included).

    "wsd" stays at ``peak`` until the last ``wsd_decay_samples`` of them, and falls there as 2 x 0.5^x - 1, x
    from 0 to 1 (Megatron-LM's WSD with its exponential style).

    With ``unit`` "tokens" all three numbers, and what `at` is asked for, count tokens.
    """

    peak: float
    minimum: float
    decay: Literal["constant", "linear", "cosine", "wsd"]
    warmup_samples: int
    decay_samples: int
    wsd_decay_samples: int = 0
    unit: Literal["samples", "tokens"] = "samples"

    def at(self, consumed: int) -> float:
        """The rate of the step that brings the count of its unit to ``consumed``."""
        if consumed < self.warmup_samples:
            return self.peak * consumed / self.warmup_samples
        left = self._left(consumed)
        return self.peak if left == 1 else self.minimum + (self.peak - self.minimum) * left

    def _left(self, consumed: int) -> float:
        """The part of the way from minimum to peak, after the warm-up."""
        if self.decay == "constant":
            return 1.0
        if self.decay == "wsd":
            begin = max(self.warmup_samples, self.decay_samples - self.wsd_decay_samples)
            return 2 * 0.5 ** self._part(consumed, begin) - 1
        done = self._part(consumed, self.warmup_samples)
        return 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2

    def _part(self, consumed: int, begin: int) -> float:
        """0 at ``begin``, 1 from ``decay_samples`` on."""
        span = max(1, self.decay_samples - begin)
        return min(1.0, max(0, consumed - begin) / span)
