"""Signals while Ray starts: it sets a handler of its own, and must not be cut in two."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from rankloom.train.signals import handler
from rankloom.train.stopping import STOP_SIGNALS

__all__ = ["handlers_kept", "interrupts_put_off"]

_ENDING = (signal.SIGINT, signal.SIGHUP, *STOP_SIGNALS)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Undoes what a library inside does to the handlers of signals that end a run."""
    with ExitStack() as kept:
        for number in _ENDING:
            kept.enter_context(handler(number, signal.getsignal(number) or signal.SIG_DFL))
        yield


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Signals that end a run raise KeyboardInterrupt when the inside is over: it starts processes of which
    nobody would know if it were left halfway.

    One that is ignored stays so. Ray's own answer to SIGTERM, SystemExit, cannot be put off.
    """
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    with ExitStack() as handlers:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers.enter_context(handler(number, remember))
        try:
            yield
        except SystemExit as ended:
            raise KeyboardInterrupt from ended
    if seen:
        raise KeyboardInterrupt
