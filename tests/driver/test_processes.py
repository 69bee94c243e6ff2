"""Processes of ranks are known by more than their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankloom.driver.processes import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def test_this_process(tmp_path: Path) -> None:
    Process.current().write(tmp_path / "rank-3.pid")
    found = Process.read(tmp_path / "rank-3.pid")
    assert found.pid == os.getpid()
    assert found.is_running()
    assert [file.name for file in tmp_path.iterdir()] == ["rank-3.pid"]


def test_another_process_with_the_same_id_is_not_it() -> None:
    now = Process.current()
    assert not replace(now, started=str(int(now.started) - 1)).is_running()
    assert not replace(now, started="").is_running()


def test_only_the_very_process_is_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as started:
        process = Process.of(started.pid)
        replace(process, started=str(int(process.started) - 1)).kill()
        assert started.poll() is None
        process.kill()
        assert started.wait(timeout=30) == -signal.SIGKILL
    process.kill()  # it is gone


def test_one_that_ended_is_not_running_even_if_nobody_has_looked() -> None:
    with subprocess.Popen(["sleep", "60"]) as started:
        process = Process.of(started.pid)
        assert process.is_running()
        started.kill()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)  # ended, and not looked at
        assert not process.is_running()
