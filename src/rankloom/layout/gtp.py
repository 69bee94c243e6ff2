"""GTPParallelLayout: one set of ranks, cut one way for weights and another way for tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from rankloom.errors import UserError
from rankloom.layout.arithmetic import CP, PP, TP, WORLD, Q, Settings, W, check, positive
from rankloom.layout.axes import AXES, DEFAULT_RANK_ORDER, RANK_ORDERS, Grid, IntArray
from rankloom.layout.provenance import Provenance
from rankloom.layout.views import View

if TYPE_CHECKING:
    from rankloom.layout.topology import Topology

Number = TypeVar("Number", int, IntArray)


@dataclass(frozen=True)
class Coords:
    """A rank's position on the six axes, and its indices in the two views."""

    rank: int
    tp: int
    gtp_seq: int
    gtp_batch: int
    cp: int
    dp: int
    pp: int
    lane: int
    context: int
    weight_shard: int
    replica: int

    def describe(self) -> str:
        """ "tp 0, gtp_seq 1, gtp_batch 0, cp 0, dp 1, pp 0, lane 2, context 1, weight_shard 1, replica 1"."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if name != "rank")


@dataclass(frozen=True)
class GTPParallelLayout:
    """Sizes of the six axes and the order in which ranks are numbered. Make one with :meth:`resolve`.

    Every number is exact: a layout whose divisions do not come out even cannot be constructed (UserError).

    >>> layout = GTPParallelLayout.resolve(
    ...     world_size=24, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    ... )
    >>> layout.gtp_remat_size, layout.data_parallel_size, layout.batch_parallel_size, layout.lane(9)
    (3, 2, 6, 2)
    """

    world_size: int
    tensor_model_parallel_size: int
    sequence_parallel: bool
    tensor_parallel_num_weight_shards: int
    tensor_parallel_num_sequence_shards: int
    context_parallel_size: int
    pipeline_model_parallel_size: int
    rank_order: str = DEFAULT_RANK_ORDER
    rank_offset: int = 0

    def __post_init__(self) -> None:
        check(self._settings, where=Provenance())
        _check_numbering(self.rank_order, self.rank_offset, where=Provenance())

    @classmethod
    def resolve(
        cls,
        *,
        world_size: int,
        tensor_model_parallel_size: int = 1,
        sequence_parallel: bool | None = None,
        tensor_parallel_num_weight_shards: int | None = None,
        tensor_parallel_num_sequence_shards: int | None = None,
        context_parallel_size: int = 1,
        pipeline_model_parallel_size: int = 1,
        rank_order: str = DEFAULT_RANK_ORDER,
        rank_offset: int = 0,
        sources: Mapping[str, str] | None = None,
        origin: str = "",
    ) -> GTPParallelLayout:
        """The layout of these settings, with what is unset derived (keywords as in the ``parallel`` section).

        Unset, ``sequence_parallel`` is on when TP > 1 (with TP 1 it has no effect and resolves to False), W
        is TP, and Q is the sequence-parallel degree. ``rank_offset`` is the first rank, for a layout on part
        of a world. ``sources`` (dotted key -> cli, file, default, derived) and ``origin`` (the file's name)
        let an error say where a value came from. Raises UserError when a division fails, with the nearest
        values that work.
        """
        where = Provenance(sources or {}, origin)
        tp = positive(TP, tensor_model_parallel_size, where=where)
        weight_shards, sequence_shards = (
            tensor_parallel_num_weight_shards,
            tensor_parallel_num_sequence_shards,
        )
        settings = Settings(
            world_size=positive(WORLD, world_size, where=where),
            tensor_model_parallel_size=tp,
            sequence_parallel=tp > 1 and sequence_parallel is not False,
            tensor_parallel_num_weight_shards=tp
            if weight_shards is None
            else positive(W, weight_shards, where=where),
            tensor_parallel_num_sequence_shards=(
                None if sequence_shards is None else positive(Q, sequence_shards, where=where)
            ),
            context_parallel_size=positive(CP, context_parallel_size, where=where),
            pipeline_model_parallel_size=positive(PP, pipeline_model_parallel_size, where=where),
        )
        check(settings, where=where, shards_follow=weight_shards is None)
        _check_numbering(rank_order, rank_offset, where=where)
        filled = asdict(settings) | {Q: settings.sequence_shards}
        return cls(**filled, rank_order=rank_order, rank_offset=rank_offset)

    @property
    def _settings(self) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings.__dataclass_fields__})

    @property
    def gtp_remat_size(self) -> int:
        """G = W / TP: over how many ranks a TP-local weight is stored."""
        return self.tensor_parallel_num_weight_shards // self.tensor_model_parallel_size

    @property
    def gtp_remat_num_sequence_shards(self) -> int:
        """S = Q / SP degree: the part of G whose ranks share one sequence."""
        degree = self.tensor_model_parallel_size if self.sequence_parallel else 1
        return self.tensor_parallel_num_sequence_shards // degree

    @property
    def gtp_remat_num_batch_shards(self) -> int:
        """B = G / S: the part of G whose ranks train on different rows."""
        return self.gtp_remat_size // self.gtp_remat_num_sequence_shards

    @property
    def data_parallel_size(self) -> int:
        """D = world / (TP * PP * CP * G)."""
        return self.world_size // self._settings.ranks_per_replica_set

    @property
    def batch_parallel_size(self) -> int:
        """D * B: the number of lanes."""
        return self.data_parallel_size * self.gtp_remat_num_batch_shards

    @property
    def runtime_context_parallel_size(self) -> int:
        """CP * S: over how many ranks attention communicates."""
        return self.context_parallel_size * self.gtp_remat_num_sequence_shards

    @property
    def num_weight_replicas(self) -> int:
        """D * CP: the copies of a weight shard."""
        return self.data_parallel_size * self.context_parallel_size

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The sizes of the six primitive axes."""
        return {
            "tp": self.tensor_model_parallel_size,
            "gtp_seq": self.gtp_remat_num_sequence_shards,
            "gtp_batch": self.gtp_remat_num_batch_shards,
            "cp": self.context_parallel_size,
            "dp": self.data_parallel_size,
            "pp": self.pipeline_model_parallel_size,
        }

    @property
    def grid(self) -> Grid:
        """The numbering of the ranks over the primitive axes."""
        order = RANK_ORDERS[self.rank_order]
        sizes = self.axis_sizes
        return Grid(order, tuple(sizes[axis] for axis in order), self.rank_offset)

    @property
    def ranks(self) -> range:
        """The global ranks of this layout."""
        return range(self.rank_offset, self.rank_offset + self.world_size)

    @property
    def weights(self) -> View:
        """Who stores which weights: axes tp, gtp_remat (gtp_batch, gtp_seq), replica (dp, cp), pp."""
        return View("weights", self.grid)

    @property
    def tokens(self) -> View:
        """Who trains on which tokens: axes tp, context (cp, gtp_seq), batch (dp, gtp_batch), pp."""
        return View("tokens", self.grid)

    def coords(self, rank: int) -> Coords:
        """Where a global rank stands. Raises UserError for a rank outside the layout."""
        at = self.grid.coordinates(rank)
        return Coords(rank=rank, **at, **self._indices(at))

    def coord_arrays(self) -> dict[str, IntArray]:
        """The fields of :meth:`coords` for all ranks at once: name -> int64 [world_size], in rank order."""
        at = self.grid.coordinate_arrays()
        return {axis: at[axis] for axis in AXES} | self._indices(at)

    def _indices(self, at: Mapping[str, Number]) -> dict[str, Number]:
        """The indices in the two views of what stands at these coordinates: one rank, or arrays of them."""
        sequence_shards = self.gtp_remat_num_sequence_shards
        return {
            "lane": at["dp"] * self.gtp_remat_num_batch_shards + at["gtp_batch"],
            "context": at["cp"] * sequence_shards + at["gtp_seq"],
            "weight_shard": at["gtp_batch"] * sequence_shards + at["gtp_seq"],
            "replica": at["dp"] * self.context_parallel_size + at["cp"],
        }

    def lane(self, rank: int) -> int:
        """The index of the microbatch a global rank trains on."""
        return self.coords(rank).lane

    def owner(self, lane: int) -> int:
        """The global rank that reads the data of a lane: the one with tp, context and pp 0."""
        if not 0 <= lane < self.batch_parallel_size:
            raise UserError(
                f"there is no lane {lane}; this layout has lanes 0 to {self.batch_parallel_size - 1}"
            )
        dp, gtp_batch = divmod(lane, self.gtp_remat_num_batch_shards)
        return self.grid.rank_at(dp=dp, gtp_batch=gtp_batch)

    def driver_axes(self) -> IntArray:
        """The global ranks over the axes a driver names, which are ``DRIVER_AXES``.

        [pipeline_parallel, data_parallel, context_parallel, tensor_parallel], where data_parallel is the lane
        and context_parallel the runtime context, whatever the rank order.
        """
        arranged = self.grid.arranged("pp", "dp", "gtp_batch", "cp", "gtp_seq", "tp")
        return arranged.reshape(
            self.pipeline_model_parallel_size,
            self.batch_parallel_size,
            self.runtime_context_parallel_size,
            self.tensor_model_parallel_size,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """All sizes by name, configured ones and derived ones."""
        return {name: int(getattr(self, name)) for name in SIZE_NAMES}

    def fingerprint(self) -> str:
        """SHA-256 (hex) of sizes, rank order and offset: equal when two layouts are the same."""
        facts = {"sizes": self.sizes, "rank_order": self.rank_order, "rank_offset": self.rank_offset}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _repr_html_(self) -> str:
        """The interactive page of this layout, for notebooks."""
        from rankloom.explain.notebook import layout_html

        return layout_html(self)

    def to_json(
        self,
        *,
        sources: Mapping[str, str] | None = None,
        nvlink_domain_size: int | None = None,
        topology: Topology | None = None,
    ) -> dict[str, object]:
        """Everything as plain data: the object that ``rankloom layout --json`` prints.

        The ranks stand as ``topology`` says or, without one, in NVLink domains of one size (default 8).
        """
        from rankloom.layout.report import layout_object
        from rankloom.layout.topology import DEFAULT_NVLINK_DOMAIN_SIZE, Topology

        size = nvlink_domain_size or DEFAULT_NVLINK_DOMAIN_SIZE
        regular = topology or Topology.regular(self, nvlink_domain_size=size)
        return layout_object(self, sources=sources or {}, topology=regular)


SIZE_NAMES = (
    "world_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "runtime_context_parallel_size",
    "data_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "gtp_remat_size",
    "gtp_remat_num_sequence_shards",
    "gtp_remat_num_batch_shards",
    "batch_parallel_size",
    "num_weight_replicas",
)


def _check_numbering(rank_order: str, rank_offset: int, *, where: Provenance) -> None:
    if rank_order not in RANK_ORDERS:
        close = get_close_matches(str(rank_order), RANK_ORDERS, n=1)
        known = " or ".join(
            [f"{close[0]} (nearest)", *(o for o in RANK_ORDERS if o != close[0])] if close else RANK_ORDERS
        )
        raise UserError(f"rank_order {rank_order!r} is not known; use {known}{where.clause('rank_order')}")
    if rank_offset < 0:
        raise UserError(f"rank_offset must be at least 0, not {rank_offset}")
