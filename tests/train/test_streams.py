"""A display that cannot write: nothing is raised, and the exit code stays what the run made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.processes import ROOT

SHOW = """
import sys, time
from rankloom.cli.standard_streams import open_standard_streams
from rankloom.train import ConsoleReporter
from tests.train import runs
open_standard_streams()
with ConsoleReporter() as reporter:
    reporter.phase("load the data", 5.0)
    reporter.start(max_steps=3, first_step=1)
    for step in range(1, 4):
        reporter.step(runs.metrics(step))
    reporter.finish({"steps": 3, "loss_first": 4.0, "loss_last": 1.0, "time_s": 1.0})
"""
REFUSE = "from rankloom.cli import main; main(['train', 'nowhere.yaml'])"


def shown(redirection: str, code: str = SHOW) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@needs_full
def test_a_full_disk_under_stderr_leaves_the_summary() -> None:
    code, out, err = shown("2> /dev/full")
    assert (code, err) == (0, "")
    assert out.startswith("trained 3 steps")


@needs_full
def test_a_full_disk_under_stdout_leaves_the_progress() -> None:
    code, out, err = shown("> /dev/full")
    assert (code, out) == (0, "")
    assert "step 3/3" in err
    assert "rror" not in err


def test_closed_streams_are_no_error() -> None:
    assert shown(">&- 2>&-") == (0, "", "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_gone(stream: str) -> None:
    read, write = os.pipe()
    os.close(read)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    done = subprocess.run(  # type: ignore[call-overload]
        [sys.executable, "-c", SHOW], cwd=ROOT, text=True, timeout=60, check=False, **streams
    )
    os.close(write)
    assert done.returncode == 0
    assert "rror" not in (done.stderr or "")


@needs_full
def test_a_refusal_that_cannot_be_said_keeps_its_code() -> None:
    assert shown("2> /dev/full", REFUSE) == (2, "", "")
    assert shown(">&- 2>&-", REFUSE)[0] == 2
