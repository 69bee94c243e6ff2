"""Processes of ranks are known by more than their id."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankloom.driver.pid_file import RankProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def test_this_process(tmp_path: Path) -> None:
    RankProcess.current().write(tmp_path / "rank-3.pid")
    found = RankProcess.read(tmp_path / "rank-3.pid")
    assert found.pid == os.getpid()
    assert found.is_running()
    assert [file.name for file in tmp_path.iterdir()] == ["rank-3.pid"]


def test_another_process_with_the_same_id_is_not_it() -> None:
    now = RankProcess.current()
    assert not replace(now, started=str(int(now.started) - 1)).is_running()
    assert not replace(now, started="").is_running()


def test_one_that_ended_is_not_running_even_if_nobody_has_looked() -> None:
    with subprocess.Popen(["sleep", "60"]) as started:
        fields = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
        process = RankProcess(started.pid, fields[19])
        assert process.is_running()
        started.kill()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)  # ended, and not looked at
        assert not process.is_running()
