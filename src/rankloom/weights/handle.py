"""What a sharded module knows of its weight: where to get it, and where its gradient goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rankloom.comm import Pending
from rankloom.plan import Placement
from rankloom.weights.schedule import GatherSchedule
from rankloom.weights.unit import WeightUnit

__all__ = ["GradientReducer", "WeightHandle"]

MAX_IN_FLIGHT = 2


class GradientReducer:
    """Reduces each unit's gradient over gtp_remat as soon as its last user has written it, in the background.

    At most ``MAX_IN_FLIGHT`` reductions are under way, because each holds a whole unit's gradient. In the
    last microbatch of a step, ``on_complete`` is called for each unit whose sum came home."""

    def __init__(self) -> None:
        self.on_complete: Callable[[WeightUnit], None] = lambda unit: None
        self.first_microbatch = True
        self._last_microbatch = True
        self._in_flight: deque[tuple[WeightUnit, Pending | None]] = deque()

    def begin(self, *, first: bool, last: bool) -> None:
        """Starts a microbatch: the first of a step overwrites what ``gradients`` hold, the others add to
        it."""
        self.first_microbatch, self._last_microbatch = first, last
        self._in_flight.clear()

    def written(self, unit: WeightUnit, name: str) -> None:
        """One user of ``name`` has written its gradient."""
        if unit.gradient_written(name):
            pending = unit.launch_reduction(first_microbatch=self.first_microbatch)
            self._in_flight.append((unit, pending))
            self._land(MAX_IN_FLIGHT)

    def drain(self) -> None:
        """Waits for all reductions under way; the end of a microbatch's backward."""
        self._land(0)

    def _land(self, allowed: int) -> None:
        while len(self._in_flight) > allowed:
            unit, pending = self._in_flight.popleft()
            if pending is not None:
                pending.wait()
            if self._last_microbatch:
                self.on_complete(unit)


@dataclass(frozen=True)
class WeightHandle:
    """One weight of one unit, as its modules use it. A tied weight has one handle and two users."""

    unit: WeightUnit
    name: str
    schedule: GatherSchedule
    reducer: GradientReducer

    @property
    def placement(self) -> Placement:
        return self.unit.placement(self.name)

    def weight(self) -> Tensor:
        """[logical rows of this TP rank, cols]; valid until another unit's weight is asked for."""
        return self.schedule.weight(self.unit, self.name)

    def add_gradient(self, grad_output: Tensor, inputs: Tensor) -> None:
        """Adds grad_output^T @ inputs, [T, rows] and [T, cols]."""
        self.unit.add_gradient(self.name, grad_output, inputs, first_microbatch=self.reducer.first_microbatch)

    def add_row_gradient(self, rows: Tensor, grad_rows: Tensor) -> None:
        """Adds ``grad_rows`` [n, cols] to ``rows`` [n]."""
        self.unit.add_row_gradient(self.name, rows, grad_rows, first_microbatch=self.reducer.first_microbatch)

    def gradient_written(self) -> None:
        """This user has added all of its gradient for the present microbatch."""
        self.reducer.written(self.unit, self.name)
