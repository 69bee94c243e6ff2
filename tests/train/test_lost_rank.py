"""Real training that loses a rank in the middle of a step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.train import runs
from tests.train.processes import Launch, until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def lose_rank_3(folder: Path, how: signal.Signals) -> str:
    """What ``rankloom train`` says when rank 3 gets a signal after the first steps."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(runs.mapping(folder)))
    settings = ("--train.max_steps", "100000", "--data.max_seq_length", "128", "--comm.timeout_s", "3")
    launch = Launch("train", str(file), *settings, module="rankloom")
    metrics = folder / "run/metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    os.kill(launch.rank_pids(folder / "run/logs")[3], how)
    code, out, err = launch.end()
    assert (code, out, launch.left()) == (1, "", [])
    return err


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    err = lose_rank_3(tmp_path, signal.SIGKILL)
    assert "rankloom train: rank 3 (tp 1, gtp_seq 0, gtp_batch 1, " in err
    assert ") failed in step " in err
    assert "its process was ended by SIGKILL" in err


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    err = lose_rank_3(tmp_path, signal.SIGSTOP)
    assert "rankloom train: the ranks wait for each other for more than comm.timeout_s = 3 s" in err
    assert "rank 3 (tp 1, gtp_seq 0, gtp_batch 1, " in err
    assert "shows no sign of life" in err
    assert "missing: rank 3" in err
