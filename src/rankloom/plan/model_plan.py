"""Placement of a whole model: gather units, the flat buffers they are stored in, and how optimizer state is
cut.

A *unit* is what one all-gather moves: the linears of a decoder layer, the embedding, the output head. A rank
stores a unit as one flat buffer, shard after shard. The buffer's gradient is summed over the ranks that hold
copies of it, and the optimizer state is cut into as many equal *pieces* as there are copies:

unit of weights     copies: replica (dp, cp)                     pieces: number of replicas
small parameters    copies: gtp_remat x replica, all but tp, pp  pieces: GTP_remat x replicas
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan.model_spec import ModelSpec
from rankloom.plan.placement import Placement, place

__all__ = ["FlatUnit", "ModelPlan", "PieceRange"]


@dataclass(frozen=True)
class PieceRange:
    """The elements [start, stop) of a unit's flat buffer that belong to one parameter and one piece."""

    placement: Placement
    start: int
    stop: int


@dataclass(frozen=True)
class FlatUnit:
    """Shards of some parameters in one flat buffer of ``stored_numel`` elements, a multiple of
    ``num_pieces``."""

    name: str
    placements: tuple[Placement, ...]
    num_pieces: int

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First element of each parameter's shard in the flat buffer."""
        offsets, end = {}, 0
        for p in self.placements:
            offsets[p.name] = end
            end += p.shard_numel
        return offsets

    @cached_property
    def numel(self) -> int:
        return sum(p.shard_numel for p in self.placements)

    @property
    def piece_numel(self) -> int:
        return -(-self.numel // self.num_pieces)

    @property
    def stored_numel(self) -> int:
        return self.piece_numel * self.num_pieces

    def piece(self, index: int) -> Iterator[PieceRange]:
        """The parameters, or parts of them, inside piece ``index``."""
        low, high = index * self.piece_numel, (index + 1) * self.piece_numel
        for p in self.placements:
            start = max(self.offsets[p.name], low)
            stop = min(self.offsets[p.name] + p.shard_numel, high)
            if start < stop:
                yield PieceRange(p, start, stop)


@dataclass(frozen=True)
class ModelPlan:
    """All parameters of a model in a layout, or those of one pipeline stage (``rankloom.plan.stages``).

    ``weights`` are the gather units in the order of the forward pass. ``is_first``, ``is_last``: whether the
    embedding, and the output head with its loss, are used here.
    """

    spec: ModelSpec
    layout: GTPParallelLayout
    weights: tuple[FlatUnit, ...]
    small: FlatUnit
    is_first: bool = True
    is_last: bool = True

    @classmethod
    def build(cls, spec: ModelSpec, layout: GTPParallelLayout) -> ModelPlan:
        """Raises UserError when TP does not divide the model's heads or widths, or leaves a rank without rows
        of the vocabulary."""
        spec.refuse_tensor_parallel(layout.tensor_model_parallel_size)
        placements = [
            place(
                p,
                tp_size=layout.tensor_model_parallel_size,
                gtp_size=layout.gtp_remat_size,
                sequence_parallel=layout.sequence_parallel,
            )
            for p in spec.parameters
        ]
        for p in placements:
            _refuse_empty_slices(p)
        units: dict[str, list[Placement]] = {}
        for p in placements:
            if p.sharded:
                units.setdefault(p.spec.unit, []).append(p)
        small = sorted((p for p in placements if not p.sharded), key=lambda p: not p.grad_partial_over_tp)
        replicas = layout.num_weight_replicas
        return cls(
            spec=spec,
            layout=layout,
            weights=tuple(FlatUnit(name, tuple(members), replicas) for name, members in units.items()),
            small=FlatUnit("small", tuple(small), replicas * layout.gtp_remat_size),
        )

    @property
    def units(self) -> tuple[FlatUnit, ...]:
        return (*self.weights, self.small)

    @cached_property
    def placements(self) -> dict[str, Placement]:
        """By Hugging Face name."""
        return {p.name: p for unit in self.units for p in unit.placements}

    @property
    def head_unit(self) -> str:
        """The unit that holds the output weight: the embedding's when the two are tied."""
        return "model.embed_tokens" if self.spec.tie_word_embeddings else "lm_head"

    @property
    def small_partial_numel(self) -> int:
        """Leading elements of the small unit whose gradient is first summed over tp."""
        return sum(p.shard_numel for p in self.small.placements if p.grad_partial_over_tp)

    def parameter_bytes(self, element_size: int) -> int:
        """Bytes of stored parameters on every rank of the one stage, padding included. ``element_size`` in
        bytes."""
        return element_size * sum(unit.stored_numel for unit in self.units)


def _refuse_empty_slices(placement: Placement) -> None:
    """Each TP rank takes ceil(rows / TP) rows of the vocabulary, so a very small one may not reach the last
    rank."""
    if placement.tp_dim is not None and not placement.tp_box(placement.tp_size - 1).num_elements:
        rows, chunk = placement.spec.shape[placement.tp_dim], placement.tp_local_shape[placement.tp_dim]
        raise UserError(
            f"vocab_size {rows} leaves the last of tensor_model_parallel_size {placement.tp_size} ranks "
            f"without a row of {placement.name}: each rank takes {chunk}; use a smaller "
            "tensor_model_parallel_size"
        )
