"""The two views of the same ranks: who shares which weights, and who shares which tokens.

A group is asked for by (view, axes), never by a name of its own. Besides the primitive axes a view knows
composite names; both kinds may be mixed, and their order does not matter: groups list ranks ascending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankloom.layout.axes import AXES, Grid, IntArray

WEIGHTS_AXES: dict[str, tuple[str, ...]] = {
    "gtp_remat": ("gtp_batch", "gtp_seq"),
    "tp_gtp_remat": ("gtp_batch", "gtp_seq", "tp"),
    "replica": ("dp", "cp"),
    "gtp_remat_replica": ("dp", "cp", "gtp_batch", "gtp_seq"),
    "world": tuple(reversed(AXES)),
}
TOKENS_AXES: dict[str, tuple[str, ...]] = {
    "context": ("cp", "gtp_seq"),
    "batch": ("dp", "gtp_batch"),
    "lane": ("pp", "cp", "gtp_seq", "tp"),
    "world": tuple(reversed(AXES)),
}


@dataclass(frozen=True)
class View:
    """One view of a layout's ranks: ``layout.weights`` or ``layout.tokens``."""

    name: str
    grid: Grid

    @property
    def composites(self) -> dict[str, tuple[str, ...]]:
        """The composite axis names of this view and the primitive axes they stand for."""
        return WEIGHTS_AXES if self.name == "weights" else TOKENS_AXES

    def primitive_axes(self, axes: str | Sequence[str]) -> tuple[str, ...]:
        """The primitive axes behind one name or several, outermost first as ranks are numbered, each once.

        Raises ValueError for a name that this view does not have.
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        wanted = {primitive for name in names for primitive in self._expand(name)}
        return tuple(axis for axis in reversed(self.grid.axes) if axis in wanted)

    def groups(self, axes: str | Sequence[str]) -> IntArray:
        """All groups over these axes: [number of groups, ranks in a group].

        A row lists its ranks ascending and rows are sorted by their first rank. A rank's place in a row is
        its index there: weight_shard in ``gtp_remat``, replica in ``replica``, context in ``context``, the
        lane in ``batch``. Groups of size 1 are rows of one rank. Where an axis set spans both cuts
        (``gtp_remat_replica``, ``world``) the place follows the rank order and is no fixed formula of them.

        >>> GTPParallelLayout.resolve(
        ...     world_size=4, tensor_parallel_num_weight_shards=2
        ... ).weights.groups("gtp_remat").tolist()
        [[0, 1], [2, 3]]
        """
        return self.grid.groups(self.primitive_axes(axes))

    def group_of(self, rank: int, axes: str | Sequence[str]) -> tuple[int, ...]:
        """The group of one rank over these axes, ascending; the same as its row in :meth:`groups`."""
        return self.grid.group_of(rank, self.primitive_axes(axes))

    def place_of(self, rank: int, axes: str | Sequence[str]) -> int:
        """The place of a rank in its group over these axes (its group rank in torch.distributed)."""
        return self.group_of(rank, axes).index(rank)

    def size(self, axes: str | Sequence[str]) -> int:
        """The number of ranks in a group over these axes."""
        return self.grid.size(self.primitive_axes(axes))

    def _expand(self, name: str) -> tuple[str, ...]:
        if name in AXES:
            return (name,)
        if name in self.composites:
            return self.composites[name]
        other, names = ("tokens", TOKENS_AXES) if self.name == "weights" else ("weights", WEIGHTS_AXES)
        hint = f"; the {other} view has it" if name in names else ""
        known = ", ".join((*AXES, *self.composites))
        raise ValueError(f"the {self.name} view has no axis {name!r}{hint} (its axes: {known})")
