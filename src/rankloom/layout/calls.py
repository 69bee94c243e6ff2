"""Whom a driver's call reaches, and which piece of the data each rank gets.

A call says of every axis of the driver that is larger than 1 whether it *splits* the data over it (shard),
*copies* the same piece to all of it (replicate), or deliberately calls index 0 only (leader_only). A rank is
called when its coordinate is 0 on every axis that is neither split nor copied; its piece is its row-major
index over the split axes, in the driver's axis order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankloom.errors import UserError
from rankloom.layout.axes import IntArray
from rankloom.layout.driver import Driver, compare_driver
from rankloom.layout.driver_words import axis_name
from rankloom.layout.gtp import GTPParallelLayout
from rankloom.layout.words import stretches_text

_FIELD_OF_WORD = {
    "shard": "shard",
    "in_sharded_axes": "shard",
    "replicate": "replicate",
    "replicate_on_axes": "replicate",
    "leader_only": "leader_only",
}
_FORM = "write NAME: shard=AXES replicate=AXES leader_only=AXES"


@dataclass(frozen=True)
class Call:
    """A call of a driver: over which axes its data is split, over which copied, and of which only index 0 is
    meant. An axis stands in one of them at most (UserError)."""

    name: str
    shard: tuple[str, ...]
    replicate: tuple[str, ...]
    leader_only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        said: dict[str, str] = {}
        for field, axes in self._fields().items():
            for axis in axes:
                if axis in said:
                    raise UserError(
                        f"call {self.name}: {axis} stands in {said[axis]} and in {field};"
                        " an axis is split, copied or called at index 0 only, one of the three"
                        if said[axis] != field
                        else f"call {self.name}: {axis} stands twice in {field}; name it once"
                    )
                said[axis] = field

    @classmethod
    def parse(cls, text: str) -> Call:
        """ "get_logprobs: shard=data_parallel replicate=context_parallel,tensor_parallel", in any order.

        ``in_sharded_axes=`` and ``replicate_on_axes=`` mean the same, and so do the short names of axes (pp,
        dp, cp, tp, gtp). Raises UserError for another form, or a word that comes twice.
        """
        name, colon, rest = text.partition(":")
        name = name.strip()
        start, *parts = re.split(r"([A-Za-z_]+)\s*=", rest)  # words and their values take turns
        if not colon or not name or start.strip(" ,"):
            raise UserError(f"call {text!r} cannot be read; {_FORM}")
        fields: dict[str, tuple[str, ...]] = {}
        for word, value in zip(parts[::2], parts[1::2], strict=True):
            field = _FIELD_OF_WORD.get(word.casefold())
            if field is None:
                raise UserError(f"call {name}: {word!r} is not known; {_FORM}")
            if field in fields:
                raise UserError(
                    f"call {name}: {word} is given twice; name all its axes in one, as in {word}=a,b"
                )
            fields[field] = _axes(value)
        return cls(name, fields.get("shard", ()), fields.get("replicate", ()), fields.get("leader_only", ()))

    def describe(self) -> str:
        """The call as :meth:`parse` reads it, all axes with their long names."""
        said = [f"{field}={','.join(axes)}" for field, axes in self._fields().items() if axes]
        return " ".join([f"{self.name}:", *said])

    def _fields(self) -> dict[str, tuple[str, ...]]:
        return {"shard": self.shard, "replicate": self.replicate, "leader_only": self.leader_only}


@dataclass(frozen=True, eq=False)
class Reach:
    """Whom a call reaches. Ranks are global; ``pieces[i]`` is the piece of rank ``first_rank + i``, -1 if it
    is never called.

    ``not_named``: axes larger than 1 that the call says nothing about. ``wrong_pieces``: ranks that are
    called with a piece that is not their lane (``right_lanes`` beside), () for a call that splits nothing.
    ``remedy``: a call that splits the lanes and leaves nobody out, "" where no axes of the driver are the
    lanes.
    """

    call: Call
    driver_sizes: Mapping[str, int]
    num_pieces: int
    num_lanes: int
    first_rank: int
    pieces: IntArray
    reached: tuple[int, ...]
    not_reached: tuple[int, ...]
    not_named: tuple[str, ...]
    wrong_pieces: tuple[int, ...]
    right_lanes: tuple[int, ...]
    remedy: str

    @property
    def partial(self) -> bool:
        """Whether ranks stay uncalled without the call saying so: it is to be refused."""
        return bool(self.not_named)

    def describe(self, *, limit: int = 8) -> str:
        """How many ranks get how many pieces, who is never called and why, whose piece is not its lane."""
        world = len(self.pieces)
        pieces = f"{self.num_pieces} piece{'s' * (self.num_pieces != 1)}"
        over = f" over {','.join(self.call.shard)}" if self.call.shard else " for everybody"
        who = f"all {world} ranks" if not self.not_reached else f"{len(self.reached)} of {world} ranks"
        texts = [f"{self.call.name} reaches {who} with {pieces}{over}"]
        if self.not_reached:
            verb = "never called" if self.partial else "left out on purpose"
            texts.append(f"{len(self.not_reached)} {verb}: {stretches_text(self.not_reached, limit=limit)}")
        if self.not_named:
            axes = ", ".join(f"{name} {self.driver_sizes[name]}" for name in self.not_named)
            texts.append(f"it does not say whether to split, copy or call index 0 only of {axes}")
        if self.wrong_pieces:
            rank, lane = self.wrong_pieces[0], self.right_lanes[0]
            number, piece = len(self.wrong_pieces), self.pieces[rank - self.first_rank]
            texts.append(
                f"{number} of {world} ranks get a piece that is not their lane: rank {rank} gets piece"
                f" {piece} and is in lane {lane}"
            )
        if self.remedy and (self.not_named or self.wrong_pieces):
            texts.append(f"try {self.remedy}")
        return "; ".join(texts)


def reach(call: Call, driver: Driver, layout: GTPParallelLayout) -> Reach:
    """Whom ``call`` reaches through ``driver``. Raises UserError for an axis the driver does not have."""
    sizes = driver.sizes
    for axis in (*call.shard, *call.replicate, *call.leader_only):
        if axis not in sizes:
            raise UserError(
                f"call {call.name}: {driver.called} has no axis {axis!r};"
                f" its axes are {', '.join(driver.names)}"
            )
    at_zero = tuple(name for name in driver.names if name not in (*call.shard, *call.replicate))
    called = driver.index(at_zero) == 0
    pieces = np.where(called, driver.index(call.shard), -1)
    lanes = layout.coord_arrays()["lane"]
    wrong = np.flatnonzero(called & (pieces != lanes)) if call.shard else np.array([], dtype=np.int64)
    silent = [name for name in at_zero if sizes[name] > 1 and name not in call.leader_only]
    return Reach(
        call=call,
        driver_sizes=sizes,
        num_pieces=int(np.prod([sizes[name] for name in call.shard], dtype=np.int64)),
        num_lanes=layout.batch_parallel_size,
        first_rank=layout.rank_offset,
        pieces=pieces,
        reached=tuple((np.flatnonzero(called) + layout.rank_offset).tolist()),
        not_reached=tuple((np.flatnonzero(~called) + layout.rank_offset).tolist()),
        not_named=tuple(silent),
        wrong_pieces=tuple((wrong + layout.rank_offset).tolist()),
        right_lanes=tuple(lanes[wrong].tolist()),
        remedy=_remedy(call, driver, layout),
    )


def _axes(text: str) -> tuple[str, ...]:
    """Axis names of a list like ``a, b`` or ``["a", "b"]``."""
    return tuple(axis_name(word) for word in re.split(r"[\s,\[\]()\"']+", text) if word)


def _remedy(call: Call, driver: Driver, layout: GTPParallelLayout) -> str:
    lanes_are = compare_driver(driver, layout).lanes_are
    if not lanes_are:
        return ""
    split = tuple(name for name in driver.names if name in lanes_are) if call.shard else ()
    leaders = tuple(name for name in call.leader_only if name not in split)
    others = tuple(name for name in driver.names if name not in (*split, *leaders))
    return Call(call.name, split, others, leaders).describe()
