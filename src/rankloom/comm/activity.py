"""What this rank is doing right now: written by the thread that trains, read by the watchdog's thread.

Collectives are numbered per group from 1, in the order of their launch. Ranks of a group must launch the same
collectives in the same order, so "rank 3 has launched 16 of gtp_remat" says that it did not arrive at number
17.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

__all__ = ["Activity", "Wait", "user_frame"]


@dataclass(frozen=True)
class Wait:
    """A blocking wait for collective number ``seq`` of ``group``; ``since``: monotonic clock, s."""

    group: str
    what: str
    seq: int
    since: float
    thread: int


class Activity:
    """The phase, the launched collectives of each group and the current wait of one rank.

    ``phase`` is free text for people ("step 3: forward, microbatch 1"); assign to it at will. ``on_phase`` is
    told each new one.
    """

    def __init__(self, phase: str = "starting", *, on_phase: Callable[[str], None] | None = None) -> None:
        self._on_phase = on_phase
        self.phase = phase
        self._launched: dict[str, tuple[int, str]] = {}
        self._wait: Wait | None = None
        self._thread = threading.get_ident()

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, text: str) -> None:
        self._phase = text
        if self._on_phase is not None:
            self._on_phase(text)

    def launched(self, group: str, what: str) -> int:
        """Count a collective of ``group`` as launched by this rank; returns its number, from 1."""
        seq = self._launched.get(group, (0, ""))[0] + 1
        self._launched[group] = (seq, what)
        return seq

    @contextmanager
    def waiting(self, group: str, what: str, seq: int) -> Iterator[None]:
        """Put around every call that blocks until collective ``seq`` of ``group`` is complete."""
        outer = self._wait
        self._wait = Wait(group, what, seq, time.monotonic(), threading.get_ident())
        try:
            yield
        finally:
            self._wait = outer

    @property
    def wait(self) -> Wait | None:
        return self._wait

    def snapshot(self) -> dict[str, object]:
        """The state as JSON values: phase, waiting, launched {group: [number, what]}, frame, time (s since
        1970).

        ``frame`` is where the training thread is, as "file:line in function".
        """
        wait = self._wait
        waiting = None
        if wait is not None:
            waiting = {**asdict(wait), "since_s": round(time.monotonic() - wait.since, 1)}
        return {
            "phase": self.phase,
            "waiting": waiting,
            "launched": {group: list(last) for group, last in dict(self._launched).items()},
            "frame": user_frame(_stack_of(wait.thread if wait else self._thread)),
            "time": time.time(),
        }


def user_frame(stack: Iterable[tuple[str, int, str]]) -> str:
    """The innermost (file, line, function) of a stack, listed outermost first, that is no library's.

    A library's innermost frame is added where it differs: "reader.py:41 in read (in socket.py:706
    recv_into)".
    """
    frames = list(stack)
    if not frames:
        return "unknown"
    own = [frame for frame in frames if not _is_library(frame[0])]
    if not own or own[-1] == frames[-1]:
        return _place(frames[-1])
    file, line, function = frames[-1]
    return f"{_place(own[-1])} (in {Path(file).name}:{line} {function})"


def _stack_of(thread: int) -> list[tuple[str, int, str]]:
    stack = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack[::-1]


def _place(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    return f"{file}:{line} in {function}"


_OWN_PACKAGE = str(Path(__file__).resolve().parents[1])
_COMM = str(Path(__file__).resolve().parent)
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))


def _is_library(file: str) -> bool:
    """This package's folder counts too: the wait names the collective, the frame who asked."""
    if file.startswith(_OWN_PACKAGE):
        return file.startswith(_COMM)
    return file.startswith((*_LIBRARIES, "<"))
