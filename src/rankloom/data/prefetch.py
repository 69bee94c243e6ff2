"""What a step needs, made ahead of it in the background, in order, a bounded number at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rankloom.errors import RunError

__all__ = ["Prefetcher"]

T = TypeVar("T")
DEPTH = 2
CLOSE_S = 10.0


class Prefetcher(Generic[T]):
    """Calls ``make(first)``, ``make(first + 1)``, ... up to ``last`` (included; None: without end) in a
    thread, at most ``depth`` of them ahead of what was taken.

    What ``make`` raises is raised by the `take` of its number, after all before it were handed out; nothing
    is made after that. ``close`` ends the thread; it is a daemon, so a process that forgets ends all the
    same.
    """

    def __init__(
        self, make: Callable[[int], T], *, first: int, last: int | None = None, depth: int = DEPTH, name: str
    ) -> None:
        assert depth >= 1
        self._make = make
        self._next = first  # to be taken
        self._last = last
        self._depth = depth
        self._ready: dict[int, T] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def take(self, number: int) -> tuple[T, float]:
        """What was made for ``number``, which follows the one taken before, and the seconds waited for it."""
        assert number == self._next, (number, self._next)
        since = time.perf_counter()
        with self._changed:
            while number not in self._ready:
                if self._failure is not None:
                    raise self._failure
                if self._closed:
                    raise RunError("the loader was closed")
                self._changed.wait()
            made = self._ready.pop(number)
            self._next += 1
            self._changed.notify_all()
        return made, time.perf_counter() - since

    def close(self) -> None:
        """Ends the thread, once it is through with what it is making. Any number of times."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout=CLOSE_S)  # where it hangs, on a disk that is gone, nothing can end it

    def _work(self) -> None:
        number = self._next
        try:
            while (self._last is None or number <= self._last) and self._wait_for_room(number):
                made = self._make(number)
                with self._changed:
                    if not self._closed:
                        self._ready[number] = made
                    self._changed.notify_all()
                number += 1
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _wait_for_room(self, number: int) -> bool:
        """False where the end has come."""
        with self._changed:
            while not self._closed and number >= self._next + self._depth:
                self._changed.wait()
            return not self._closed
