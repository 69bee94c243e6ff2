"""Ctrl-C while Ray starts."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import pytest

from rankloom.driver.signals import handlers_kept, interrupts_put_off
from rankloom.train.signals import handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupt_waits_for_the_end_of_what_is_inside(number: signal.Signals) -> None:
    steps = []
    before = signal.getsignal(number)

    def interrupted_between_steps() -> None:
        with interrupts_put_off():
            steps.append("before")
            os.kill(os.getpid(), number)
            steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        interrupted_between_steps()
    assert steps == ["before", "after"]
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_is_raised() -> None:
    with interrupts_put_off():
        pass


def test_an_ignored_signal_stays_ignored() -> None:
    with handler(signal.SIGHUP, signal.SIG_IGN), interrupts_put_off():
        os.kill(os.getpid(), signal.SIGHUP)


def test_rays_answer_to_a_signal_is_an_interrupt_too() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_put_off():
        sys.exit(signal.SIGTERM)


def test_handlers_that_a_library_sets_are_undone() -> None:
    def its_own(number: int, frame: FrameType | None) -> None:
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    with handlers_kept():
        signal.signal(signal.SIGTERM, its_own)
    assert signal.getsignal(signal.SIGTERM) is before
