"""``rankloom train`` with Ray as a user runs it: how it ends, and that nothing is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.runtime.runs import settings, write_chats
from tests.train.processes import Launch

pytestmark = pytest.mark.long

STEPS = 400
START_S = 180.0


def launch(folder: Path, *overrides: str, timeout_s: float = 60.0) -> Launch:
    write_chats(folder / "chats.jsonl")
    config = settings(folder, parallel={"tensor_parallel_num_weight_shards": 2}, world_size=4)
    config["train"]["max_steps"] = STEPS
    config["comm"] = {"timeout_s": timeout_s}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    arguments = [str(folder / "run.yaml"), "--cluster.engine", "ray", *overrides]
    return Launch("train", *arguments, module="rankloom")


def await_step(run: Launch, folder: Path, step: int) -> None:
    file = folder / "run" / "metrics.jsonl"
    wait_for(run, lambda: file.exists() and file.read_text().count("\n") >= step)


def wait_for(run: Launch, there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not there():
        assert run.process.poll() is None, run.end()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks_of(run: Launch) -> dict[int, int]:
    """Rank -> id of its process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if (match := re.match(rb"ray::Rank(\d+)\b", title)) and run.has(int(folder.name)):
            found[int(match[1])] = int(folder.name)
    return found


def ended_s(run: Launch) -> tuple[float, int, str]:
    """Seconds to its end, exit code, what it said."""
    since = time.monotonic()
    code, _, err = run.end()
    return time.monotonic() - since, code, err


def is_gone(run: Launch) -> bool:
    """Ray's own processes notice within seconds that their driver ended."""
    deadline = time.monotonic() + 30
    while run.left() and time.monotonic() < deadline:
        time.sleep(0.1)
    return run.left() == []


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    run = launch(tmp_path)
    await_step(run, tmp_path, 3)
    os.kill(ranks_of(run)[3], signal.SIGKILL)
    seconds, code, err = ended_s(run)
    assert (code, seconds < 30) == (1, True), (seconds, err)
    assert re.search(r"rank 3 \(tp 0, .*\) failed in (train|load_batch), step \d+.*, on node .*:", err), err
    assert "Traceback" not in err
    assert is_gone(run)


def test_a_stopped_rank_is_found_by_the_watchdog(tmp_path: Path) -> None:
    run = launch(tmp_path, timeout_s=4.0)
    await_step(run, tmp_path, 3)
    os.kill(ranks_of(run)[2], signal.SIGSTOP)
    seconds, code, err = ended_s(run)
    assert (code, seconds < 60) == (1, True), (seconds, err)
    assert "the ranks wait for each other for more than comm.timeout_s = 4 s" in err
    assert "rank 2 (tp 0, " in err
    assert is_gone(run)


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    run = launch(tmp_path)
    await_step(run, tmp_path, 3)
    run.process.kill()
    run.process.wait()
    assert is_gone(run), run.left()


@pytest.mark.parametrize("phase", ["start", "steps"])
def test_ctrl_c_ends_the_run(tmp_path: Path, phase: str) -> None:
    run = launch(tmp_path)
    if phase == "steps":
        await_step(run, tmp_path, 3)
    else:
        wait_for(run, lambda: len(ranks_of(run)) > 0)
    run.process.send_signal(signal.SIGINT)
    seconds, code, err = ended_s(run)
    assert (code, seconds < 30) == (130, True), (seconds, err)
    assert err.endswith("rankloom train: interrupted\n"), err
    assert is_gone(run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_saves_ends_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    run = launch(tmp_path, "--checkpoint.save_every", "1000")
    await_step(run, tmp_path, 3)
    run.process.send_signal(number)
    code, out, err = run.end()
    assert code == 0, err
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])["step"]
    assert (tmp_path / "run" / f"step-{last:08d}" / "checkpoint.json").is_file()
    assert f"after step {last} of {STEPS} ({number.name})" in out
    assert is_gone(run)
