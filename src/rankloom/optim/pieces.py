"""The part of one unit that this rank's optimizer owns: summed gradients in, updated parameters out.

group     the ranks that store copies of the unit: replica for weights, gtp_remat x replica for small ones
piece     1 / size of the unit's flat buffer: the part this rank updates
master    the piece's parameters in fp32: a view of ``stored`` when that is fp32, a copy of its own otherwise
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankloom.comm import Group, Pending
from rankloom.plan import PieceRange, Placement
from rankloom.weights import SmallUnit, WeightUnit

__all__ = ["OwnedPart", "OwnedPiece"]


@dataclass(frozen=True)
class OwnedPart:
    """One parameter, or a part of one, inside a piece: flat views of its [range.stop - range.start] elements.
    ``master`` is the tensor that the optimizer knows."""

    range: PieceRange
    stored: Tensor
    master: Tensor
    gradient: Tensor


class OwnedPiece:
    """This rank's piece of ``unit``. With one copy the piece is the whole unit and nothing is sent."""

    def __init__(self, unit: WeightUnit | SmallUnit, group: Group) -> None:
        assert unit.plan.num_pieces == group.size, (unit.name, unit.plan.num_pieces, group.size)
        self.unit = unit
        self._group = group
        low = group.index * unit.plan.piece_numel
        self._stored = unit.stored[low : low + unit.plan.piece_numel]
        alone = group.size == 1
        self.gradient = unit.gradients if alone else torch.zeros_like(self._stored, dtype=torch.float32)
        self.master = self._stored if unit.stored.dtype is torch.float32 else self._stored.float()
        self._pending: Pending | None = None
        self.parts = tuple(self._part(part, low) for part in unit.plan.piece(group.index))

    def _part(self, part: PieceRange, low: int) -> OwnedPart:
        inside = slice(part.start - low, part.stop - low)
        return OwnedPart(part, self._stored[inside], self.master[inside], self.gradient[inside])

    def reload(self) -> None:
        """Takes the stored values as the new master, after parameters were filled in from elsewhere."""
        if self.master is not self._stored:
            self.master.copy_(self._stored)

    def parameters(self) -> Iterator[tuple[Placement, Tensor, Tensor]]:
        """(parameter, master, gradient) of each parameter, or part of one, inside the piece: flat views."""
        for part in self.parts:
            yield part.range.placement, part.master, part.gradient

    def launch_reduction(self) -> None:
        """Starts summing the unit's gradient over its copies; this rank receives the sum of its piece."""
        if self._group.size > 1:
            self._pending = self._group.reduce_scatter(
                [(self.gradient, self.unit.gradients)], f"sum {self.unit.name} over copies"
            )

    def await_reduction(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def publish(self) -> None:
        """Writes the updated piece to ``stored`` and starts sending it to the other copies, which wait for it
        at the unit's next use."""
        self.unit.settle()  # what was sent before must land first
        if self.master is not self._stored:
            self._stored.copy_(self.master)
        if self._group.size > 1:
            pending = self._group.all_gather([(self.unit.stored, self._stored)], f"refill {self.unit.name}")
            self.unit.refill_after(pending)
