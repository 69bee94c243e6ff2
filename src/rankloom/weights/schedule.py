"""When weights are gathered and freed: the next unit is on its way while the present one computes.

A *visit* is a stretch of uses of one unit. The plan says which visits a microbatch makes; where it does not
(or the model goes another way) they are learned once. At each visit the gather of the next one is launched,
and every unit whose next visit is more than ``KEEP`` away is freed. All ranks run the same modules in the
same order, so all of them launch the same gathers in the same order. Nothing gathered outlives the
microbatch, so no weight can be older than the last optimizer step, whether or not activations are recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rankloom.plan.gathers import KEEP
from rankloom.weights.unit import WeightUnit

__all__ = ["GatherSchedule"]


class GatherSchedule:
    """Decides for all ``units`` of one model. ``training_visits`` and ``evaluation_visits`` are names of
    units, in the order of their visits; what is not told is learnt."""

    def __init__(
        self,
        units: Sequence[WeightUnit],
        *,
        training_visits: Sequence[str],
        evaluation_visits: Sequence[str] = (),
    ) -> None:
        self._units = tuple(units)
        by_name = {unit.name: unit for unit in units}
        told = {"train": training_visits, "evaluate": evaluation_visits}
        self._traces = {mode: [by_name[name] for name in visits] for mode, visits in told.items()}
        self._mode = ""
        self._seen: list[WeightUnit] = []
        self._expected: list[WeightUnit] = []

    def begin(self, mode: str) -> None:
        """Starts a microbatch. ``mode`` names the kind of pass ("train", "evaluate"): each has its own
        trace."""
        self._mode = mode
        self._seen = []
        self._expected = self._traces.get(mode, [])

    def end(self) -> None:
        """Ends it: frees everything and remembers the trace."""
        self._traces[self._mode] = self._seen
        for unit in self._units:
            unit.release()

    def weight(self, unit: WeightUnit, name: str) -> Tensor:
        """A weight about to be used, [logical rows, cols] of this TP rank."""
        if unit.remat and not (self._seen and self._seen[-1] is unit):
            self._visit(unit)
        return unit.weight(name)

    def _visit(self, unit: WeightUnit) -> None:
        at = len(self._seen)
        self._seen.append(unit)
        if self._expected[at : at + 1] != [unit]:
            self._expected = []  # not the way of the last microbatch: learn again
        soon = self._expected[at + 1 : at + 1 + KEEP]
        for other in self._units:
            if other is not unit and other not in soon:
                other.release()
        unit.launch_gather()
        if soon:
            soon[0].launch_gather()
