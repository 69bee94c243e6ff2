"""Where each parameter lies in the weights view: which piece of it a rank stores, and with how much padding.

Words, used the same way in the running half:

logical weight    the Hugging Face parameter, [rows, cols], uncut and unpadded
TP-local weight   the piece of it that one TP coordinate computes with; TP cuts dim 0 or dim 1
gathered weight   the TP-local weight, rows padded to a multiple of GTP_remat: what an all-gather fills
shard             1 / GTP_remat of the gathered weight along dim 0: what a rank stores
box               the logical rows and columns behind a shard
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankloom.plan.model_spec import ParameterSpec, Role

__all__ = ["Box", "Placement", "place"]

_TP_DIM: dict[Role, int | None] = {
    Role.EMBEDDING: 0,
    Role.COLUMN: 0,
    Role.ROW: 1,
    Role.HEAD: 0,
    Role.COLUMN_BIAS: 0,
    Role.ROW_BIAS: None,
    Role.NORM: None,
    Role.HEAD_NORM: None,
}
_SHARDED = frozenset({Role.EMBEDDING, Role.COLUMN, Role.ROW, Role.HEAD})


@dataclass(frozen=True)
class Box:
    """A half-open range of logical indices per dim; empty where a shard holds padding only."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.starts, self.stops, strict=True))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Placement:
    """One parameter cut by TP along ``tp_dim`` and by GTP_remat along dim 0.

    Example: a vocabulary of 101 rows, TP 2, GTP_remat 4: TP-local 51 rows (50 of them logical on tp 1),
    gathered 52, shard 13."""

    spec: ParameterSpec
    tp_size: int
    gtp_size: int  # 1 for small parameters: they are never cut by GTP_remat
    grad_partial_over_tp: bool  # each TP rank has only a part of the gradient, so it is summed over tp

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def sharded(self) -> bool:
        """Stored as GTP shards (linears and embeddings), as opposed to small parameters kept whole."""
        return self.spec.role in _SHARDED

    @property
    def tp_dim(self) -> int | None:
        return _TP_DIM[self.spec.role]

    @property
    def tp_local_shape(self) -> tuple[int, ...]:
        """Equal on all TP ranks; the last one may hold padding at its end (only where the vocabulary is
        cut)."""
        shape = list(self.spec.shape)
        if self.tp_dim is not None:
            shape[self.tp_dim] = -(-shape[self.tp_dim] // self.tp_size)
        return tuple(shape)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        rows, *rest = self.tp_local_shape
        return (-(-rows // self.gtp_size), *rest)

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        rows, *rest = self.shard_shape
        return (rows * self.gtp_size, *rest)

    @property
    def shard_numel(self) -> int:
        return math.prod(self.shard_shape)

    def tp_box(self, tp: int) -> Box:
        """Logical indices of the TP-local weight at TP coordinate ``tp``."""
        starts, stops = [0] * len(self.spec.shape), list(self.spec.shape)
        if self.tp_dim is not None:
            chunk, size = self.tp_local_shape[self.tp_dim], self.spec.shape[self.tp_dim]
            starts[self.tp_dim] = min(tp * chunk, size)
            stops[self.tp_dim] = min((tp + 1) * chunk, size)
        return Box(tuple(starts), tuple(stops))

    def box(self, tp: int, weight_shard: int) -> Box:
        """Logical indices behind the shard at TP coordinate ``tp`` and GTP_remat index ``weight_shard``."""
        local = self.tp_box(tp)
        rows = self.shard_shape[0]
        start = min(local.starts[0] + weight_shard * rows, local.stops[0])
        stop = min(start + rows, local.stops[0])
        return Box((start, *local.starts[1:]), (stop, *local.stops[1:]))


def place(spec: ParameterSpec, *, tp_size: int, gtp_size: int, sequence_parallel: bool) -> Placement:
    """The placement of one parameter. Its gradient is partial over TP when a TP rank sees only some of the
    tokens (norms and row-parallel biases under sequence parallelism) or only some of the heads (q/k
    norms)."""
    partial = spec.role is Role.HEAD_NORM or (sequence_parallel and spec.role in (Role.NORM, Role.ROW_BIAS))
    return Placement(
        spec=spec,
        tp_size=tp_size,
        gtp_size=gtp_size if spec.role in _SHARDED else 1,
        grad_partial_over_tp=partial and tp_size > 1,
    )
