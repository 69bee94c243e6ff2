"""The size of the global batch over a run: constant, or growing in steps at its start, as Megatron-LM means
``--rampup-batch-size START INCREMENT SAMPLES``.

    num_increments = (global_batch_size - START) / INCREMENT
    size after c consumed samples = START + INCREMENT x floor(c x num_increments / SAMPLES), at most
                                    global_batch_size
"""

from __future__ import annotations

from dataclasses import dataclass

from rankloom.errors import UserError
from rankloom.layout.arithmetic import divisors, nearest

__all__ = ["BatchSizes"]

KEY = "train.rampup_batch_size"
MOST_SIZES = 2**16


@dataclass(frozen=True)
class BatchSizes:
    """Rows of a step as a function of the rows consumed before it, so that nothing else decides it.

    Attributes:
        final: ``train.global_batch_size``.
        rampup: START, INCREMENT, SAMPLES; None where all steps have the final size.
    """

    final: int
    rampup: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.rampup is None:
            return
        start, increment, _ = self.rampup
        shown = f"{KEY} {list(self.rampup)}"
        if start >= self.final:
            raise UserError(
                f"{shown}: its first size {start} is not smaller than train.global_batch_size {self.final}; "
                "set it to null, or begin with less"
            )
        if (self.final - start) % increment:
            rest = self.final - start
            tries = " or ".join(map(str, nearest(increment, divisors(rest))))
            raise UserError(
                f"{shown}: train.global_batch_size {self.final} - {start} = {rest} is not a multiple of the "
                f"increment {increment}; try {tries}"
            )
        if self.num_increments >= MOST_SIZES:
            least = -(-(self.final - start) // (MOST_SIZES - 1))
            larger = min(size for size in divisors(self.final - start) if size >= least)
            raise UserError(
                f"{shown}: from {start} to {self.final} there are {self.num_increments + 1} sizes, and "
                f"at most {MOST_SIZES} may be; try the increment {larger}"
            )

    @property
    def num_increments(self) -> int:
        return 0 if self.rampup is None else (self.final - self.rampup[0]) // self.rampup[1]

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """Every size there is, in the order they come."""
        if self.rampup is None:
            return (self.final,)
        return tuple(range(self.rampup[0], self.final + 1, self.rampup[1]))

    def at(self, consumed: int) -> int:
        """The size of the step before which ``consumed`` rows were trained on.

        >>> [BatchSizes(8, (2, 2, 30)).at(rows) for rows in (0, 9, 10, 20, 30, 99)]
        [2, 2, 4, 6, 8, 8]
        """
        if self.rampup is None:
            return self.final
        start, increment, samples = self.rampup
        return start + increment * min(self.num_increments, consumed * self.num_increments // samples)

    def grows_at(self, consumed: int) -> int | None:
        """The smallest count of consumed rows with a larger size than ``consumed`` has; None if there is
        none."""
        size = self.at(consumed)
        if self.rampup is None or size == self.final:
            return None
        start, increment, samples = self.rampup
        number = (size - start) // increment + 1
        return -(-number * samples // self.num_increments)

    def samples_of(self, num_steps: int) -> int:
        """Rows of the first steps of a run, its fillers counted: with a ramp, where no batch has any."""
        consumed = 0
        while num_steps > 0 and (limit := self.grows_at(consumed)) is not None:
            size = self.at(consumed)
            steps = min(num_steps, -(-(limit - consumed) // size))
            consumed, num_steps = consumed + steps * size, num_steps - steps
        return consumed + num_steps * self.final
