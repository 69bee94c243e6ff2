"""Ctrl-C while something runs that must not be cut in two: it waits, or it is ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["handlers_kept", "interrupts_ignored", "interrupts_put_off"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Undo what a library inside does to the handlers of SIGINT, SIGTERM and SIGHUP."""
    with _restored(_ENDING):
        yield


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Nothing that a user sends but SIGKILL ends what runs inside: it cleans up, and takes seconds."""
    with _restored(_ENDING):
        if _in_main_thread():
            for number in _ENDING:
                signal.signal(number, signal.SIG_IGN)
        yield


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt when the inside is over: it starts processes that nobody would know of
    if it were left halfway."""
    pressed: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        pressed.append(number)

    with _restored((signal.SIGINT,)):
        if _in_main_thread():
            signal.signal(signal.SIGINT, remember)
        yield
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _restored(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Only the main thread can set a handler, and other threads get no signals."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: set by code that is not Python's
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
