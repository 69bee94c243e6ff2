"""Calls of ranks that have been sent and not been seen to end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from rankloom.driver.faults import FailedCall, own_record
from rankloom.driver.group import Patience
from rankloom.train.failures import FailureKind

__all__ = ["CallsUnderWay", "RemoteTask"]

_GRACE_S = 0.5  # after a first failure: the rank that caused it may fail a moment later
_LONG_GRACE_S = 5.0  # the same where all failures so far only tell of another rank's end


@dataclass(frozen=True, eq=False)
class RemoteTask:
    """A method of one rank under way. ``value`` is what it will give: hand it on to other ranks as it is, or
    ``ray.get`` it; ``seconds`` is how long it took there, and small: waiting for it fetches nothing."""

    rank: int
    method: str
    seconds: ObjectRef[float]
    value: ObjectRef[Any]


class CallsUnderWay:
    """All of a gang, so that the failure of any is seen by whoever waits for some."""

    def __init__(self) -> None:
        self._tasks: dict[ObjectRef[float], RemoteTask] = {}

    def add(self, task: RemoteTask) -> RemoteTask:
        self._tasks[task.seconds] = task
        return task

    def clear(self) -> None:
        self._tasks.clear()

    def ranks(self, among: Sequence[RemoteTask]) -> list[int]:
        """The ranks of those that are still under way."""
        return [task.rank for task in among if task.seconds in self._tasks]

    def wait(self, tasks: Sequence[RemoteTask], patience: Patience | None = None) -> list[FailedCall]:
        """Waits until ``tasks`` have ended well, any call has failed, or ``patience`` is over. Gives the
        failed calls: all that were seen within a short while, in that order; none where none failed."""
        deadline = None
        while left := self.ranks(tasks):
            begun = patience is not None and (not patience.behind_first or len(left) < len(tasks))
            if patience is not None and begun and deadline is None:
                deadline = time.monotonic() + patience.seconds
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return []
            if failed := self._settle(left_s):
                return self._with_what_follows(failed)
        return []

    def _with_what_follows(self, failed: list[FailedCall]) -> list[FailedCall]:
        """The rank that caused the failure of the others may be seen to fail last."""
        since = time.monotonic()
        while self._tasks:
            patience = since + _grace_s(failed) - time.monotonic()
            if patience <= 0:
                break
            failed += self._settle(patience)
        return failed

    def _settle(self, patience_s: float | None) -> list[FailedCall]:
        """Waits for one call at least, and takes note of all that have ended by then."""
        ready, rest = ray.wait(list(self._tasks), num_returns=1, timeout=patience_s, fetch_local=False)
        if rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        tasks = [self._tasks.pop(reference) for reference in ready]
        if not tasks or _all_well(ready):
            return []
        return [failed for task in tasks if (failed := _failure_of(task)) is not None]


def _all_well(references: list[ObjectRef[float]]) -> bool:
    """For all at once: there may be thousands."""
    try:
        ray.get(references)
    except RayError:  # looked at one by one by the caller
        return False
    return True


def _failure_of(task: RemoteTask) -> FailedCall | None:
    try:
        ray.get(task.seconds)
    except RayError as error:
        return FailedCall(task.rank, task.method, error)
    return None


def _grace_s(failed: Sequence[FailedCall]) -> float:
    records = [own_record(call) for call in failed]
    followed = all(record is not None and record.kind is FailureKind.FOLLOW_UP for record in records)
    return _LONG_GRACE_S if followed else _GRACE_S
