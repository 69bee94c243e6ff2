"""Signals that ask the process which starts the ranks to end, or to let the run end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rankloom.train.stopping import STOP_SIGNALS

__all__ = ["handler", "interrupts_ignored", "signals_as_interrupt"]


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    with ExitStack() as handlers:
        for number in (signal.SIGINT, signal.SIGHUP, *STOP_SIGNALS):
            handlers.enter_context(handler(number, signal.SIG_IGN))
        yield


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGUSR1, and the loss of the terminal unless that is ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with ExitStack() as handlers:
        for number in (*STOP_SIGNALS, *(() if ignored else (signal.SIGHUP,))):
            handlers.enter_context(handler(number, signal.default_int_handler))
        yield


@contextmanager
def handler(number: signal.Signals, action: signal._HANDLER) -> Iterator[None]:
    """A signal handler for a while; only the main thread can set one, and other threads get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)
