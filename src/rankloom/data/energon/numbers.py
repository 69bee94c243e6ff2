"""Which rows of a run a step has, by number: known before any of them is made."""

from __future__ import annotations

from rankloom.config.rampup import BatchSizes
from rankloom.data.rows import Row

__all__ = ["RowNumbers"]


class RowNumbers:
    """Rows are numbered through the run. Steps count from 0; ``first_step`` begins with row ``first_row``,
    and those before are not known."""

    def __init__(self, sizes: BatchSizes, *, first_step: int = 0, first_row: int = 0) -> None:
        self.sizes = sizes
        self.first_step = first_step
        self._begins = [first_row]  # of the steps known so far

    def continued_from(self, *, step: int, row: int) -> RowNumbers:
        """The rows of the steps from ``step`` on, which begins with ``row``, whatever batches led there."""
        return RowNumbers(self.sizes, first_step=step, first_row=row)

    def of(self, step0: int) -> tuple[int, int]:
        """(first row, number of rows) of a step.

        >>> RowNumbers(BatchSizes(8, (2, 2, 30))).of(5)
        (10, 4)
        """
        assert step0 >= self.first_step
        place = step0 - self.first_step
        if self.sizes.rampup is None:
            return self._begins[0] + place * self.sizes.final, self.sizes.final
        while len(self._begins) <= place:
            self._begins.append(self._begins[-1] + self.sizes.at(self._begins[-1]))
        return self._begins[place], self.sizes.at(self._begins[place])

    def end(self, num_steps: int) -> int:
        """Rows of the run through its first ``num_steps`` steps."""
        if num_steps == self.first_step:
            return self._begins[0]
        first, size = self.of(num_steps - 1)
        return first + size

    def lane(self, step0: int, *, lane: int, num_lanes: int, micro_batch_size: int) -> list[tuple[Row, ...]]:
        """The rows of a step that lane ``lane`` trains on, those with row mod lanes = lane, a tuple a
        microbatch. What is in them is not known here."""
        first, size = self.of(step0)
        mine = [Row(row, 0, ()) for row in range(first, first + size) if row % num_lanes == lane]
        return [tuple(mine[at : at + micro_batch_size]) for at in range(0, len(mine), micro_batch_size)]
