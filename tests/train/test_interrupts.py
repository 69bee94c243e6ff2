"""Launchers that are interrupted or killed: the right exit code, and no process is left."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.train.processes import Launch, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def started(folder: Path) -> Launch:
    """A launcher whose four ranks are in the middle of their work."""
    launch = Launch("local", "sleep_well", str(folder))
    until(lambda: len(list(folder.glob("run/pid-*"))) == 4)
    return launch


def test_ctrl_c_ends_everything_with_130(tmp_path: Path) -> None:
    launch = started(tmp_path)
    launch.process.send_signal(signal.SIGINT)
    code, _, err = launch.end()
    assert code == 130
    assert err.splitlines()[-1] == "rankloom train: interrupted"
    assert "Traceback" not in err
    assert launch.left() == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_like_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    launch = started(tmp_path)
    launch.process.send_signal(number)
    assert launch.end()[0] == 130
    assert launch.left() == []
    assert list((tmp_path / "temporary").glob("rankloom-*")) == []


@pytest.mark.long
@pytest.mark.parametrize("num_processes", [1, 2, 3, 5])
def test_ctrl_c_during_set_up(tmp_path: Path, num_processes: int) -> None:
    launch = Launch("local", "sleep_well", str(tmp_path))
    until(lambda: len(launch.left()) >= num_processes)
    if num_processes == 1:
        until(lambda: (tmp_path / "run").exists())  # before that, Python itself is starting
    launch.process.send_signal(signal.SIGINT)
    code, _, err = launch.end()
    assert code == 130
    assert "Traceback" not in err
    assert launch.left() == []


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
def test_ranks_end_with_a_killed_launcher(tmp_path: Path, stopped: bool) -> None:
    launch = started(tmp_path)
    if stopped:
        pid = int((tmp_path / "run/pid-2").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
    launch.process.kill()
    until(lambda: launch.left() == [], timeout_s=20)
    launch.end()
