"""Real training whose lanes read their rows in processes: however it ends, none of them is left."""

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
SETTINGS = ("--train.max_steps", "100000", "--data.max_seq_length", "128", "--data.num_workers", "2")


def started(folder: Path) -> tuple[Launch, list[int]]:
    """A run after its first steps, and its loader processes: four, for two lanes."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(runs.mapping(folder)))
    launch = Launch("train", str(file), *SETTINGS, module="rankloom")
    metrics = folder / "run/metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"rankloom.data.builder" in path.read_bytes() and launch.has(int(path.parent.name))
    ]
    return launch, found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt(tmp_path: Path, number: signal.Signals) -> None:
    launch, loaders = started(tmp_path)
    assert len(loaders) == 4
    launch.process.send_signal(number)
    assert launch.end()[0] == 130
    until(lambda: launch.left() == [], timeout_s=20)


def test_a_killed_launcher(tmp_path: Path) -> None:
    launch, _ = started(tmp_path)
    launch.process.kill()
    until(lambda: launch.left() == [], timeout_s=20)
    launch.end()


def test_a_killed_loader_process_ends_the_run_and_is_named(tmp_path: Path) -> None:
    launch, loaders = started(tmp_path)
    os.kill(loaders[0], signal.SIGKILL)
    code, _, err = launch.end()
    assert code == 1
    assert "(data.num_workers) was ended by SIGKILL" in err
    assert "lane " in err
    until(lambda: launch.left() == [], timeout_s=20)


def test_the_end_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(runs.mapping(tmp_path)))
    settings = ("--data.max_seq_length", "128", "--data.num_workers", "2")
    launch = Launch("train", str(file), *settings, module="rankloom")
    assert launch.end()[0] == 0
    assert launch.left() == []
