"""Runs whose ranks or launchers are killed, at any moment: the same command, typed again, always goes on from
a complete checkpoint and ends with the loss of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankloom.checkpoint import list_checkpoints
from tests.runtime.runs import settings, write_chats
from tests.train.processes import ROOT, Launch, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

W = "tensor_parallel_num_weight_shards"
RANKS = 2


def config_file(folder: Path, steps: int, **checkpoint: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_chats(folder / "chats.jsonl", count=60)
    given = settings(folder, parallel={W: 2}, world_size=RANKS, train={"max_steps": steps})
    given["checkpoint"] |= {"save_every": 2, **checkpoint}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def launched(file: Path, *arguments: str) -> Launch:
    return Launch("train", str(file), *arguments, module="rankloom")


def rows(file: Path) -> list[dict[str, Any]]:
    metrics = file.parent / "run/metrics.jsonl"
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]


def undisturbed(file: Path) -> list[dict[str, Any]]:
    code, _, err = launched(file).end()
    assert code == 0, err
    return rows(file)


def same_course(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for key in ("step", "loss", "grad_norm", "lr", "consumed_samples", "consumed_tokens"):
        assert [row[key] for row in found] == [row[key] for row in expected], key


def rank_pids(launch: Launch, file: Path) -> dict[int, int]:
    found = launch.rank_pids(file.parent / "run/logs")
    return {rank: pid for rank, pid in found.items() if launch.has(pid)}


def in_a_step(launch: Launch, file: Path, rng: random.Random) -> None:
    """Until the run has gone on, and some time more."""
    before = rows(file)[-1:]
    until(lambda: launch.process.poll() is not None or rows(file)[-1:] != before)
    time.sleep(rng.uniform(0.0, 0.6))


def in_a_save(launch: Launch, file: Path, rng: random.Random) -> None:
    """Until a checkpoint is being written."""
    folder = file.parent / "run"
    until(lambda: launch.process.poll() is not None or any(folder.glob("*.partial")))
    time.sleep(rng.uniform(0.0, 0.02))


def in_start_up(launch: Launch, file: Path, rng: random.Random) -> None:
    until(lambda: launch.process.poll() is not None or len(rank_pids(launch, file)) == RANKS)
    time.sleep(rng.uniform(0.0, 0.5))


def kill(launch: Launch, file: Path, rng: random.Random) -> None:
    """One rank, all ranks, or the launcher."""
    victims = rng.choice(["a rank", "all ranks", "the launcher"])
    pids = rank_pids(launch, file)
    if victims == "the launcher" or not pids:
        chosen = [launch.process.pid]
    else:
        chosen = list(pids.values()) if victims == "all ranks" else [rng.choice(list(pids.values()))]
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # the run came to its end


def survives(tmp_path: Path, moments: list[Callable[..., None]], *, steps: int, seed: int) -> None:
    expected = undisturbed(config_file(tmp_path / "whole", steps))
    file, rng = config_file(tmp_path / "killed", steps), random.Random(seed)
    for moment in moments:
        launch = launched(file)
        moment(launch, file, rng)
        kill(launch, file, rng)
        launch.end()
        until(lambda launch=launch: launch.left() == [])  # type: ignore[misc]
        complete = [found for found in list_checkpoints(file.parent / "run") if found.complete]
        assert all(found.leftover or found.complete for found in list_checkpoints(file.parent / "run"))
        assert complete or len(rows(file)) < 6
    code, _, err = launched(file).end(timeout_s=300)
    assert code == 0, err
    same_course(rows(file), expected)
    assert {found.path.suffix for found in list_checkpoints(file.parent / "run")} == {""}


@pytest.mark.long
def test_a_kill_in_a_save_and_a_signal(tmp_path: Path) -> None:
    expected = undisturbed(config_file(tmp_path / "whole", 24))
    file, rng = config_file(tmp_path / "killed", 24), random.Random(1)
    launch = launched(file)
    until(lambda: len(rows(file)) >= 2)
    in_a_save(launch, file, rng)
    kill(launch, file, rng)
    assert launch.end()[0] != 0
    launch = launched(file)
    before = len(rows(file))
    until(lambda: len(rows(file)) > before)
    launch.process.send_signal(signal.SIGTERM)
    code, out, err = launch.end()
    assert (code, launch.left()) == (0, []), err
    last = len(rows(file))
    assert f"stopped  after step {last} of 24 (SIGTERM); the same command goes on from " in out
    assert not (file.parent / "run/model").exists()
    code, _, err = launched(file).end()
    assert code == 0, err
    assert f"goes on with step {last + 1} of 24" in err
    same_course(rows(file), expected)


@pytest.mark.long
def test_forty_kills(tmp_path: Path) -> None:
    moments = [in_a_step] * 18 + [in_a_save] * 18 + [in_start_up] * 4
    random.Random(3).shuffle(moments)
    survives(tmp_path, moments, steps=500, seed=4)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    expected = undisturbed(config_file(tmp_path / "whole", 30))
    file = config_file(tmp_path / "stopped", 30, save_every=1000)
    launch = launched(file)
    until(lambda: len(rows(file)) >= 3)
    launch.process.send_signal(number)
    code, out, err = launch.end()
    assert code == 0, err
    assert launch.left() == []
    last = len(rows(file))
    assert last < 30
    assert f"stopped  after step {last} of 30 ({number.name}); the same command goes on from " in out
    assert [found.step for found in list_checkpoints(file.parent / "run")] == [last]
    assert not (file.parent / "run/model").exists()
    code, _, err = launched(file).end()
    assert code == 0
    assert f"goes on with step {last + 1} of 30" in err
    same_course(rows(file), expected)


@pytest.mark.long
def test_a_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    file = config_file(tmp_path, 100_000)
    launch = launched(file)
    until(lambda: len(rows(file)) >= 2)
    for pid in rank_pids(launch, file).values():
        os.kill(pid, signal.SIGSTOP)  # the step never ends
    launch.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGTERM)
    assert launch.end()[0] == 130
    assert launch.left() == []


@pytest.mark.long
def test_without_checkpoints_a_signal_interrupts(tmp_path: Path) -> None:
    file = config_file(tmp_path, 100_000, save_every=0)
    launch = launched(file)
    until(lambda: len(rows(file)) >= 2)
    launch.process.send_signal(signal.SIGTERM)
    code, _, err = launch.end()
    assert code == 130
    assert err.splitlines()[-1] == "rankloom train: interrupted"


@pytest.mark.long
def test_time_that_runs_out(tmp_path: Path) -> None:
    """A first save is allowed a minute, so that with less than that the run ends after its first step."""
    file = config_file(tmp_path, 100_000)
    launch = launched(file, "--checkpoint.time_limit", "0:00:50")
    code, out, err = launch.end()
    assert code == 0, err
    assert "stopped  after step 1 of 100000 (checkpoint.time_limit 0:00:50)" in out
    assert [found.step for found in list_checkpoints(file.parent / "run")] == [1]


@pytest.mark.long
def test_a_full_disk_ends_the_run_and_not_its_checkpoints(tmp_path: Path) -> None:
    """In a file system of some megabytes; with more room the same command goes on."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    expected = undisturbed(config_file(tmp_path / "whole", 30, keep=None))
    file = config_file(tmp_path / "small", 30, keep=None)
    run = file.parent / "run"
    run.mkdir()
    train = f"{sys.executable} -m rankloom train {file}"
    script = (
        f"mount -t tmpfs -o size=6m none {run} && {train}; echo first $? && ls {run} && "
        f"mount -o remount,size=600m {run} && {train}; echo second $? && cat {run}/metrics.jsonl"
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "first 1" in done.stdout, done.stderr
    assert "No space left on device" in done.stderr
    assert "second 0" in done.stdout, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    same_course(found, expected)


@pytest.mark.long
def test_a_folder_that_goes_away_is_told_with_rank_and_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, 100_000)
    launch = launched(file)
    until(lambda: any((file.parent / "run").glob("step-*[0-9]")))
    (file.parent / "run").rename(tmp_path / "elsewhere")
    code, _, err = launch.end()
    assert code == 1
    said = err[err.index("rankloom train: ") :]
    assert (
        f"checkpoint.dir: {file.parent / 'run'} is gone since the run began" in said
        or "was not saved" in said
    )
    assert not (file.parent / "run").exists()
