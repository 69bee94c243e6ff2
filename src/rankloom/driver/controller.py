"""Supervised fine-tuning by one controller: it calls, step by step, what all ranks do.

No batch passes here: the owners of the lanes load the rows of a step and send envelopes, which the controller
looks at and hands to the ranks of each lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rankloom.config import ResolvedConfig
from rankloom.driver.axes import NamedAxes
from rankloom.driver.dispatch import BoundCalls, PendingCall
from rankloom.driver.envelopes import Envelope, refuse_wrong_lanes
from rankloom.driver.group import Group
from rankloom.driver.worker import RankView, Started, Stepped, TrainWorker
from rankloom.errors import RunError
from rankloom.layout import GTPParallelLayout
from rankloom.train.reporting import Event, Reporter, deliver

__all__ = ["SFTController", "compare_views"]

_LATER_S = 10.0  # where ranks wait for each other, their watchdogs speak first: they know more


def _no_wish() -> str:
    return ""


class SFTController:
    """A run on a group of workers, one for each rank of ``resolved.layout``.

    Args:
        resolved: the run.
        group: its workers, `TrainWorker` or what has its calls.
        reporter: is told what the first rank tells.
        wish: asked before each step why the run is to end after it; "": it is not.
        on_steps: told when steps begin.

    Attributes:
        dispatch_s: of each step but the last, seconds from its result to the dispatch of the next.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        group: Group[Any],
        *,
        reporter: Reporter,
        wish: Callable[[], str] = _no_wish,
        on_steps: Callable[[], None] = lambda: None,
    ) -> None:
        self.dispatch_s: list[float] = []
        self._layout = resolved.layout
        self._group = group
        self._timeout_s = resolved.comm.timeout_s
        self._reporter = reporter
        self._wish = wish
        self._on_steps = on_steps
        self._calls = BoundCalls(NamedAxes.of(resolved.layout), TrainWorker)
        self._ended_at: float | None = None

    def run(self) -> Mapping[str, object]:
        """From the handshake to the end; the summary. Raises UserError and RunError: what the group raises
        for a failed rank, or where ranks and controller do not agree."""
        compare_views(self.call("introduce"), self._layout)
        [started] = self.call("start")
        self._begin(started)
        self._train(started)
        [(summary, events)] = self.call("finish")
        self._deliver(events)
        return {**summary, "dispatch_s": sum(self.dispatch_s)}

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Any call of the workers, and its results."""
        return self._ended(self._calls.start(self._group, method, *args, **kwargs))

    def _ended(self, call: PendingCall[Any]) -> list[Any]:
        return call.result(timeout_s=self._timeout_s + _LATER_S)

    def _begin(self, started: Started) -> None:
        self._deliver(started.events)

    def _train(self, started: Started) -> None:
        steps = range(started.first_step, started.max_steps + 1)
        if not steps:
            return
        self._on_steps()
        envelopes: list[Envelope] = self._ended(self._load(steps[0]))
        for step in steps:
            refuse_wrong_lanes(envelopes, step=step, num_lanes=self._layout.batch_parallel_size)
            # Before the step, so that its rows are there when the step is done.
            loading = self._load(step + 1) if step < started.max_steps else None
            training = self._send(step, envelopes)
            if loading is not None:  # owners load before they train: where none comes back, no rank trains
                envelopes = self._ended(loading)
            if self._receive(step, training).stopped:
                return

    def _load(self, step: int) -> PendingCall[Any]:
        return self._calls.start(self._group, "load_batch", step)

    def _send(self, step: int, envelopes: Sequence[Envelope]) -> PendingCall[Any]:
        training = self._calls.start(self._group, "train", step, pieces=envelopes, wish=self._wish())
        if self._ended_at is not None:
            self.dispatch_s.append(time.perf_counter() - self._ended_at)
        return training

    def _receive(self, step: int, training: PendingCall[Any]) -> Stepped:
        lanes: list[Stepped] = self._ended(training)
        self._ended_at = time.perf_counter()
        if unlike := [
            told for told in lanes if (told.step, bool(told.stopped)) != (step, bool(lanes[0].stopped))
        ]:
            raise RunError(
                f"step {step}: lanes disagree on whether the run ends: {lanes[0]} on lane 0, {unlike[0]}"
            )
        self._deliver(lanes[0].events)
        return lanes[0]

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            deliver(event, self._reporter)


def compare_views(views: Sequence[RankView], layout: GTPParallelLayout) -> None:
    """Raises RunError where a rank has another layout than the controller, or stands elsewhere in it, naming
    rank and axis."""
    for rank, view in zip(layout.ranks, views, strict=True):
        if view.rank != rank:
            raise RunError(f"the worker of rank {rank} takes itself for rank {view.rank}")
        if view.fingerprint != layout.fingerprint():
            differences = _differences(view.sizes, layout.sizes)
            raise RunError(
                f"rank {rank} was started with another layout than the controller "
                f"({differences or 'another rank order'}): all must be given the same parallel settings"
            )
        here = {name: getattr(layout.coords(rank), name) for name in view.coords}
        if differences := _differences(view.coords, here):
            raise RunError(
                f"rank {rank} stands elsewhere in the layout than the controller says: {differences}; is "
                "another version of rankloom installed there?"
            )


def _differences(there: Mapping[str, int], here: Mapping[str, int]) -> str:
    return "; ".join(
        f"{name} {there.get(name)} there, {value} here"
        for name, value in here.items()
        if there.get(name) != value
    )
