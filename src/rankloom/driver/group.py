"""Workers, one a rank, as calls see them; and a group of them inside this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Executor, Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from rankloom.errors import RankloomError, RunError
from rankloom.layout.words import stretches_text

__all__ = ["Group", "LocalGroup", "Patience"]

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class Patience:
    """How long ranks are waited for: ``seconds`` from now, or ``behind_first``, from when the first of them
    came back: all ranks of a collective end it at nearly the same time."""

    seconds: float
    behind_first: bool = False

    def told(self, late: Sequence[int], method: str) -> str:
        """Of the ranks that are waited for no longer."""
        who = f"rank{'s' * (len(late) > 1)} {stretches_text(late)}"
        since = " after the first that did" if self.behind_first else ""
        return f"{who} did not come back from {method} within {self.seconds:g} s{since}"


class Group(Protocol[Handle]):
    """What a call needs of the workers: to send to one, and to wait for several."""

    @property
    def ranks(self) -> frozenset[int]:
        """The global ranks that have a worker."""

    def share(self, value: Any) -> Any:
        """What stands for ``value`` in the arguments of many ranks, so that it is not copied for each. Asked
        for once a value and call."""

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Handle:
        """Starts a method of one worker and does not wait for it. Neither ``args`` nor ``kwargs`` may be
        changed: other ranks get the same objects."""

    def gather(
        self, handles: Mapping[int, Handle], wanted: Sequence[int], *, patience: Patience | None = None
    ) -> list[Any]:
        """Waits for all ``handles`` (of the ranks they are under) and returns the results of the ``wanted``
        ranks, in that order; other results need not be fetched. Raises as soon as one has failed, and
        RunError naming the ranks that are late when ``patience`` is over."""


class _Done(NamedTuple):
    """A method that has run; to ask as a future is asked, and much lighter than one."""

    value: Any
    error: BaseException | None

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> Any:
        return self.value


class _Task(NamedTuple):
    method: str
    outcome: Future[Any] | _Done


class LocalGroup:
    """Workers that are objects of this process; ``workers``: rank -> object.

    Without ``executor`` a method runs when it is submitted; with one (of threads), as many at once as it has
    room for.
    """

    def __init__(self, workers: Mapping[int, object], *, executor: Executor | None = None) -> None:
        self._workers = workers
        self._executor = executor
        self._ranks = frozenset(workers)

    @property
    def ranks(self) -> frozenset[int]:
        return self._ranks

    def share(self, value: Any) -> Any:
        return value

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Task:
        function = getattr(self._workers[rank], method)
        if self._executor is not None:
            return _Task(method, self._executor.submit(function, *args, **kwargs))
        try:
            return _Task(method, _Done(function(*args, **kwargs), None))
        except Exception as error:
            return _Task(method, _Done(None, error))

    def gather(
        self, handles: Mapping[int, _Task], wanted: Sequence[int], *, patience: Patience | None = None
    ) -> list[Any]:
        """Raises for the lowest rank that has failed by then: its own UserError or RunError, else a RunError
        with rank and method."""
        futures = [task.outcome for task in handles.values() if isinstance(task.outcome, Future)]
        if patience is not None and patience.behind_first:
            wait(futures, return_when=FIRST_COMPLETED)
        wait(futures, timeout=patience.seconds if patience else None, return_when=FIRST_EXCEPTION)
        for rank, task in handles.items():
            error = task.outcome.exception() if task.outcome.done() else None
            if isinstance(error, RankloomError):
                raise error
            if error is not None:
                reason = f"{type(error).__name__}: {error}"
                raise RunError(f"rank {rank} failed in {task.method}: {reason}") from error
        late = [rank for rank, task in handles.items() if not task.outcome.done()]
        if late and patience is not None:
            raise RunError(patience.told(late, handles[late[0]].method))
        return [handles[rank].outcome.result() for rank in wanted]
