"""From a declared call to the arguments of each rank and back to results in lane order.

Who gets which piece is worked out once for each method of a worker class, by the layout; a call then only
hands out references to arguments it does not copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Signature, getmembers, signature
from typing import Any, Generic, TypeVar

import numpy as np

from rankloom.driver.axes import NamedAxes
from rankloom.driver.calls import CallSpec, spec_of
from rankloom.driver.group import Group, Patience
from rankloom.errors import RunError, UserError
from rankloom.layout import reach
from rankloom.layout.words import stretches_text

__all__ = ["BoundCalls", "CallPlan", "PendingCall", "plan_call"]

Handle = TypeVar("Handle")


@dataclass(frozen=True, eq=False)
class CallPlan:
    """Whom one method reaches. ``ranks`` are called, ascending, ``ranks[i]`` with piece ``pieces[i]``;
    ``wanted`` are the ranks whose results come back, in that order; ``said`` is the reach in words."""

    name: str
    spec: CallSpec
    axes: NamedAxes
    ranks: tuple[int, ...]
    pieces: tuple[int, ...]
    num_pieces: int
    wanted: tuple[int, ...]
    said: str

    def refuse_pieces(self, pieces: Sequence[Any] | None) -> None:
        """Raises RunError for another number of pieces than the call is split into, naming the ranks that
        would stay uncalled."""
        number = 0 if pieces is None else len(pieces)
        if not (self.spec.shard and self.spec.takes_pieces):
            if pieces is not None:
                given = f"call {self.name} takes no pieces, and {number} are given"
                raise RunError(f"{given}; pass what all ranks get as an argument")
        elif number != self.num_pieces:
            sizes = " x ".join(f"{axis} {self.axes.get_axis_size(axis)}" for axis in self.spec.shard)
            product = f" = {self.num_pieces}" if len(self.spec.shard) > 1 else ""
            raise RunError(
                f"call {self.name}: {number} piece{'s' * (number != 1)} for {sizes}{product}:"
                f" {self._left_over(number)}; give {self.num_pieces}"
            )

    def _left_over(self, number: int) -> str:
        if number > self.num_pieces:
            last = f" to {number - 1}" if number - 1 > self.num_pieces else ""
            return f"piece{'s' * bool(last)} {self.num_pieces}{last} would reach no rank"
        uncalled = [rank for rank, piece in zip(self.ranks, self.pieces, strict=True) if piece >= number]
        number_of = f"{len(uncalled)} of {self.axes.size} ranks"
        return f"{number_of} would stay uncalled: {stretches_text(uncalled)}"

    def refuse_missing(self, there: frozenset[int]) -> None:
        """Raises RunError where ranks that are to be called have no worker."""
        if missing := [rank for rank in self.ranks if rank not in there]:
            raise RunError(
                f"call {self.name} is for {len(self.ranks)} ranks, and {len(missing)} of them have no worker"
                f" in this group: {stretches_text(missing)}"
            )


def plan_call(name: str, spec: CallSpec, *, axes: NamedAxes) -> CallPlan:
    """Works out a call on the ranks of a layout (``axes``: of the whole layout, else ValueError).

    Raises UserError for a call that would leave ranks uncalled without saying so, with their number, the
    axes it is silent about and a call that reaches everybody; and as ``CallSpec.named`` does.
    """
    found = reach(spec.named(name), axes.driver, axes.parallel_layout)
    # On these axes a piece is not a lane only where a call splits others, and then it means to.
    found = replace(found, wrong_pieces=(), right_lanes=())
    if found.partial:
        raise UserError(found.describe())
    pieces = found.pieces[np.array(found.reached) - found.first_rank]
    return CallPlan(
        name=name,
        spec=spec,
        axes=axes,
        ranks=found.reached,
        pieces=tuple(pieces.tolist()),
        num_pieces=found.num_pieces,
        wanted=_wanted(spec, axes, found.reached),
        said=found.describe(),
    )


def _wanted(spec: CallSpec, axes: NamedAxes, called: tuple[int, ...]) -> tuple[int, ...]:
    if spec.collect == "none":
        return ()
    if spec.collect == "all":
        return called
    at_zero = {axis: 0 for axis in axes.names if axis not in spec.shard}
    first = axes.get_ranks(**at_zero)  # over the shard axes, as pieces are counted
    return (first,) if isinstance(first, int) else tuple(first.layout.reshape(-1).tolist())


@dataclass(frozen=True, eq=False)
class PendingCall(Generic[Handle]):
    """A call that is under way; ``handles``: rank -> what its group gave for it."""

    plan: CallPlan
    group: Group[Handle]
    handles: Mapping[int, Handle]

    def result(self, *, timeout_s: float | None = None) -> list[Any]:
        """Waits for all ranks that were called; the results that the call collects, in its order. Raises
        what ``Group.gather`` raises for a failed rank.

        ``timeout_s``: also for ranks that take longer than this: from now, or in a collective, in which ranks
        see to each other, from when the first of them came back.
        """
        patience = None if timeout_s is None else Patience(timeout_s, behind_first=self.plan.spec.collective)
        return self.group.gather(self.handles, self.plan.wanted, patience=patience)


class BoundCalls:
    """All calls of a worker class on the ranks of a layout.

    Every method that is declared with ``call`` is planned here, so what one of them gets wrong is refused
    (UserError) before there is a worker.
    """

    def __init__(self, axes: NamedAxes, worker_class: type) -> None:
        self.axes = axes
        self._class = worker_class.__name__
        self._plans: dict[str, CallPlan] = {}
        self._signatures: dict[str, Signature] = {}
        for name, member in getmembers(worker_class, callable):
            if (spec := spec_of(member)) is not None:
                self._plans[name] = self._plan(name, spec)
                self._signatures[name] = signature(member)

    def _plan(self, name: str, spec: CallSpec) -> CallPlan:
        try:
            return plan_call(name, spec, axes=self.axes)
        except UserError as error:
            raise UserError(f"{error} (declared in {self._class})") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The methods that can be called, sorted."""
        return tuple(self._plans)

    def plan(self, method: str) -> CallPlan:
        """Whom a method reaches. Raises UserError for one that is not declared."""
        if method not in self._plans:
            known = ", ".join(self._plans) or "none"
            raise UserError(f"{method} is no call of {self._class}; declared with @call are: {known}")
        return self._plans[method]

    def start(
        self,
        group: Group[Handle],
        method: str,
        /,
        *args: Any,
        pieces: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> PendingCall[Handle]:
        """Sends a call and does not wait for it. ``pieces``: one for each index of the ``shard`` axes, the
        first argument of the ranks there; ``args`` and ``kwargs`` are the same for all ranks, and shared.

        Before anything is sent: UserError for a method that is not declared; RunError for another number of
        pieces than there are, for arguments the method does not take, and for ranks without a worker.
        """
        plan = self.plan(method)
        plan.refuse_pieces(pieces)
        self._refuse_arguments(method, args if pieces is None else (None, *args), kwargs)
        plan.refuse_missing(group.ranks)
        common = tuple(group.share(value) for value in args)
        keywords = {name: group.share(value) for name, value in kwargs.items()}
        if pieces is None:
            of_piece = [common] * plan.num_pieces
        else:
            of_piece = [(group.share(piece), *common) for piece in pieces]
        handles = {
            rank: group.submit(rank, method, of_piece[piece], keywords)
            for rank, piece in zip(plan.ranks, plan.pieces, strict=True)
        }
        return PendingCall(plan, group, handles)

    def run(
        self,
        group: Group[Any],
        method: str,
        /,
        *args: Any,
        pieces: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """:meth:`start`, and the result."""
        return self.start(group, method, *args, pieces=pieces, **kwargs).result()

    def _refuse_arguments(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        takes = self._signatures[method]
        try:
            takes.bind(None, *args, **kwargs)  # None: the worker itself
        except TypeError as error:
            raise RunError(f"call {method}: {error}; it is {method}{takes}") from error
