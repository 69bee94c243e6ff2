"""How a method of a worker is called: declared beside it, checked before anything is sent.

Of every axis larger than 1 a call says one of three things:

shard          its pieces are split over it: index i gets piece i
replicate      all of it gets a copy of the same piece
leader_only    only index 0 is called, on purpose

A method in which all ranks wait for each other is a *collective*, and cannot leave ranks out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rankloom.errors import UserError
from rankloom.layout import DRIVER_AXES, Call
from rankloom.layout.driver_words import DATA, axis_name

__all__ = ["WITHIN_LANE", "CallSpec", "Collect", "call", "spec_of"]

WITHIN_LANE = tuple(axis for axis in DRIVER_AXES if axis != DATA)
"""The axes of one lane: what is split over data_parallel is copied over these."""

Collect = Literal["shards", "all", "none"]

_ATTRIBUTE = "_rankloom_call"
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class CallSpec:
    """How a method is called. Axes have their long names and stand in the order of ``DRIVER_AXES``.

    Attributes:
        shard, replicate, leader_only: see above. Over several ``shard`` axes there is a piece for each
            combination of their indices, the last axis changing fastest.
        collect: which results come back. "shards": one for each piece, in the order of the pieces, of the
            copy at index 0 (so the lanes' in lane order, and one for a call that splits nothing); "all": of
            every rank called, ascending; "none": none, although all are waited for.
        collective: all ranks have to come, because they wait for each other in it.
        takes_pieces: of a call over ``shard`` axes: it is sent pieces, each the first argument of its ranks.
            If not, only its results are told apart.
    """

    shard: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()
    leader_only: tuple[str, ...] = ()
    collect: Collect = "shards"
    collective: bool = True
    takes_pieces: bool = True

    def named(self, name: str) -> Call:
        """The call for the layout to judge.

        Raises UserError for an axis that does not exist or comes twice, and for a collective with
        ``leader_only``.
        """
        spoken = Call(name, self.shard, self.replicate, self.leader_only)
        for axis in (*self.shard, *self.replicate, *self.leader_only):
            if axis not in DRIVER_AXES:
                raise UserError(
                    f"call {name}: there is no axis {axis!r}; the axes are {', '.join(DRIVER_AXES)}"
                )
        if self.collect not in ("shards", "all", "none"):
            raise UserError(f"call {name}: collect is shards, all or none, not {self.collect!r}")
        if self.collective and self.leader_only:
            copied = (*self.replicate, *self.leader_only)
            remedy = Call(name, self.shard, tuple(a for a in DRIVER_AXES if a in copied))
            raise UserError(
                f"call {name} is a collective, in which all ranks wait for each other, and leader_only="
                f"{','.join(self.leader_only)} calls index 0 alone, which would wait forever; copy it to all"
                f" of them ({remedy.describe()}), or write collective=False if no rank waits for another"
            )
        return spoken


def call(
    *,
    shard: str | Sequence[str] = (),
    replicate: str | Sequence[str] = (),
    leader_only: str | Sequence[str] = (),
    collect: Collect = "shards",
    collective: bool = True,
    takes_pieces: bool = True,
) -> Callable[[Method], Method]:
    """Declares how a method of a worker is called (see :class:`CallSpec`); the method stays as it is.

    Axes may be written short (dp, cp, tp, pp). A method of a subclass needs its own declaration. Raises
    UserError as ``CallSpec.named`` does.

    >>> class Worker:
    ...     @call(shard="data_parallel", replicate=WITHIN_LANE)
    ...     def get_logprobs(self, sequences): ...
    >>> spec_of(Worker.get_logprobs).shard
    ('data_parallel',)
    """
    spec = CallSpec(_axes(shard), _axes(replicate), _axes(leader_only), collect, collective, takes_pieces)

    def declare(method: Method) -> Method:
        spec.named(method.__name__)
        setattr(method, _ATTRIBUTE, spec)
        return method

    return declare


def spec_of(method: object) -> CallSpec | None:
    """What was declared of a method; None where nothing was."""
    spec = getattr(method, _ATTRIBUTE, None)
    assert spec is None or isinstance(spec, CallSpec)
    return spec


def _axes(given: str | Sequence[str]) -> tuple[str, ...]:
    names = [axis_name(word) for word in ([given] if isinstance(given, str) else given)]
    known = [axis for axis in DRIVER_AXES for name in names if name == axis]
    return (*known, *(name for name in names if name not in DRIVER_AXES))
