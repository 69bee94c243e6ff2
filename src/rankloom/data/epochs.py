"""How the rows of one epoch are cut into the global batches of consecutive steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rankloom.config.rampup import BatchSizes
from rankloom.data.rows import Position

__all__ = ["EpochSteps", "Segment"]


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one size: ``first_step`` begins with row ``first_row`` of the epoch."""

    first_step: int
    first_row: int
    size: int


@dataclass(frozen=True)
class EpochSteps:
    """The steps of an epoch, or of the rest of one.

    Attributes:
        begin: where they begin.
        num_rows: of the whole epoch.
        num_steps: of these steps.
        segments: at least one, even where there is no step.
        num_used: rows in these steps.
    """

    begin: Position
    num_rows: int
    num_steps: int
    segments: tuple[Segment, ...]
    num_used: int

    @classmethod
    def of(cls, begin: Position, num_rows: int, sizes: BatchSizes, *, fill: bool) -> EpochSteps:
        """Cuts rows ``begin.row`` .. ``num_rows - 1``; an incomplete batch at the end is a step if ``fill``.

        >>> EpochSteps.of(Position(), 30, BatchSizes(8, (2, 2, 30)), fill=True).segments
        (Segment(first_step=0, first_row=0, size=2), Segment(first_step=5, first_row=10, size=4), \
Segment(first_step=8, first_row=22, size=6))
        """
        segments = tuple(_segments(begin, num_rows, sizes))
        last = segments[-1]
        left = num_rows - last.first_row
        steps = -(-left // last.size) if fill else left // last.size
        end = min(num_rows, last.first_row + steps * last.size)
        return cls(begin, num_rows, last.first_step + steps - begin.step, segments, end - begin.row)

    @property
    def epoch(self) -> int:
        return self.begin.epoch

    @property
    def first_step(self) -> int:
        return self.begin.step

    @property
    def first_row(self) -> int:
        return self.begin.row

    @property
    def end(self) -> Position:
        """The begin of the next epoch."""
        step, rows = self.begin.step + self.num_steps, self.begin.rows + self.num_used
        return Position(step=step, epoch=self.begin.epoch + 1, row=0, rows=rows)

    @property
    def num_dropped(self) -> int:
        return self.num_rows - self.begin.row - self.num_used

    @property
    def num_fillers(self) -> int:
        """Empty rows of the last step."""
        if self.num_steps == 0:
            return 0
        start, size = self.batch(self.first_step + self.num_steps - 1)
        return max(0, start + size - self.num_rows)

    def batch(self, step0: int) -> tuple[int, int]:
        """(first row in the epoch, number of rows, fillers included) of one of these steps."""
        at = bisect_right(self.segments, step0, key=lambda segment: segment.first_step) - 1
        segment = self.segments[at]
        return segment.first_row + (step0 - segment.first_step) * segment.size, segment.size

    def row_id(self, row: int) -> int:
        """The number in the run of a row of the epoch."""
        return self.begin.rows + row - self.begin.row


def _segments(begin: Position, num_rows: int, sizes: BatchSizes) -> Iterator[Segment]:
    step, row = begin.step, begin.row
    while True:
        consumed = begin.rows + row - begin.row
        size, grows_at = sizes.at(consumed), sizes.grows_at(consumed)
        yield Segment(step, row, size)
        if grows_at is None:
            return
        steps = -(-(grows_at - consumed) // size)
        if row + steps * size > num_rows:  # the epoch ends before
            return
        step, row = step + steps, row + steps * size
