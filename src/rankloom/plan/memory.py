"""What a rank keeps between two steps: parameters, gradients, optimizer state. Activations, gathered weights
and buffers of exchanges come and go, and are not counted.

Stored parameters and their fp32 gradients are as long as the units. Of what is cut further, over the copies
of a unit, each rank keeps one piece: the summed gradient (where there is more than one copy), the fp32 master
(where parameters are stored in another type), and the two moments of Adam.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankloom.plan.collectives import FP32
from rankloom.plan.model_plan import FlatUnit, ModelPlan

__all__ = ["MemoryPart", "memory_parts"]

NUM_MOMENTS = 2


@dataclass(frozen=True)
class MemoryPart:
    """One kind of tensor on the rank that keeps most of it.

    ``num_elements`` x ``bytes_each`` = ``num_bytes``; ``how`` says in words which elements these are.
    """

    what: str
    num_elements: int
    bytes_each: int
    how: str

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.bytes_each


def memory_parts(plan: ModelPlan, *, element_size: int) -> tuple[MemoryPart, ...]:
    """Every kind of which a rank keeps anything. ``element_size``: bytes of a stored parameter.

    The plan is that of one pipeline stage.
    """
    stored = sum(unit.stored_numel for unit in plan.units)
    summed = sum(unit.piece_numel for unit in plan.units if unit.num_pieces > 1)
    masters = 0 if element_size == FP32 else sum(unit.piece_numel for unit in plan.units)
    updated = sum(_updated(unit) for unit in plan.units)
    pieces = _pieces(plan)
    parts = (
        MemoryPart("parameters", stored, element_size, "stored shards, whole norms and biases, with padding"),
        MemoryPart("gradients", stored, FP32, "as long as the parameters, fp32"),
        MemoryPart("summed gradients", summed, FP32, f"this rank's pieces ({pieces}), fp32"),
        MemoryPart("master weights", masters, FP32, f"this rank's pieces ({pieces}), fp32"),
        MemoryPart("moments", updated, NUM_MOMENTS * FP32, f"two of this rank's pieces ({pieces}), fp32"),
    )
    return tuple(part for part in parts if part.num_elements)


def _updated(unit: FlatUnit) -> int:
    """Elements of the first piece that are parameters and no padding; no other piece has more."""
    return sum(part.stop - part.start for part in unit.piece(0))


def _pieces(plan: ModelPlan) -> str:
    """ "1/2 of the weights, 1/8 of norms and biases", or "all" where there is one copy of everything."""
    replicas, small = plan.layout.num_weight_replicas, plan.small.num_pieces
    if small == 1:
        return "all"
    weights = f"1/{replicas} of the weights" if replicas > 1 else "all weights"
    return f"{weights}, 1/{small} of norms and biases"
