"""Runs that are asked to end, or whose time is up: in steps, in saves, at the start, under torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rankloom.checkpoint import list_checkpoints
from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.errors import UserError
from rankloom.train import saves, session, stopping
from rankloom.train.loop import run_connected
from rankloom.train.stopping import Deadline, Stopping, StopSignals
from rankloom.train.worker import Worker
from tests.resume.runs import TIMES, branch, chats, config, metrics, started, without
from tests.runtime.runs import Recorder
from tests.train.processes import Launch, until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


class Clock:
    """In the place of the module ``time``: a step takes 100 s, a save 50 s."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def taking(self, seconds: float, genuine: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return genuine(*args, **kwargs)

        return called


def timed(rank: int, world_size: int, made: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """A run that has 1,000 s by that clock; and when it ended."""
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (stopping, session, saves):
            patch.setattr(module, "time", clock)
        patch.setattr(Worker, "_accumulate", clock.taking(100.0, Worker._accumulate))
        patch.setattr(Worker, "save", clock.taking(50.0, Worker.save))
        end = Stopping(deadline=Deadline(1_000.0, "checkpoint.time_limit 0:16:40"))
        summary = run_connected(resolved, comm, reporter=Recorder(), stopping=end)
    comm.close()
    return dict(summary), clock.now


@pytest.mark.parametrize(
    ("save_every", "last", "ends_at"), [pytest.param(0, 9, 950.0, marks=pytest.mark.long), (4, 7, 800.0)]
)
def test_a_run_is_over_before_its_time_is_up(
    ranks: Any, tmp_path: Path, save_every: int, last: int, ends_at: float
) -> None:
    """Steps are taken as long as another one and a save fit. A first save is allowed a minute, later ones
    what the longest took, seen at the end of a step: 150 s here; a step with a save takes as long."""
    made = config(chats(tmp_path), "2 TP2", tmp_path / "run", train={"max_steps": 1_000})
    made["checkpoint"] |= {"save_every": save_every, "time_limit": "0:16:40", "background": False}
    summary, ended_at = ranks(2, timed, made, timeout_s=120)[0]
    folder = tmp_path / f"run/step-{last:08d}"
    assert summary["stopped"] == (
        f"after step {last} of 1000 (checkpoint.time_limit 0:16:40); the same command goes on from {folder}"
    )
    assert ended_at == ends_at
    assert [found.step for found in list_checkpoints(tmp_path / "run") if found.complete][-1] == last
    assert not (tmp_path / "run/model").exists()


def asked_in_a_step(rank: int, world_size: int, made: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 is asked while it computes step 3."""
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    asked: list[str] = []
    genuine = Worker._accumulate

    def accumulate(worker: Worker, step0: int) -> Any:
        if (rank, step0) == (1, 2):
            asked.append("SIGTERM")
        return genuine(worker, step0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_accumulate", accumulate)
        end = Stopping(asked=lambda: asked[0] if asked else "")
        summary = run_connected(resolved, comm, reporter=Recorder(), stopping=end)
    comm.close()
    return dict(summary)


def test_the_step_in_which_a_run_is_asked_is_its_last(ranks: Any, tmp_path: Path) -> None:
    """Of another one nobody knows whether there is time for it."""
    made = config(chats(tmp_path), "2 TP2", tmp_path / "run", train={"max_steps": 10})
    summaries = ranks(2, asked_in_a_step, made)
    assert summaries[1]["stopped"].startswith("after step 3 of 10 (SIGTERM); ")
    assert summaries[0]["stopped"].startswith("after step 3 of 10 (another rank was asked to end); ")


def test_another_step_and_a_save_must_fit() -> None:
    now = time.time()
    end = Stopping(deadline=Deadline(now + 100.0, "checkpoint.time_limit 1:00:00"))
    assert end.reason(need_s=50.0) == ""
    assert end.reason(need_s=101.0) == "checkpoint.time_limit 1:00:00"
    assert Stopping(asked=lambda: "SIGTERM", deadline=end.deadline).reason(need_s=101.0) == "SIGTERM"


def test_a_time_of_day_is_that_of_the_clock_on_the_wall(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the night of 28 March 2027 clocks in Berlin go from 2:00 to 3:00."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        started_at = datetime(2027, 3, 27, 20, 0).timestamp()
        for told in ("08:00", "2027-03-28T08:00", "2027-03-28T08:00+02:00"):
            resolved = resolve(config(tmp_path, "1", tmp_path, checkpoint={"save_before": told}))
            deadline = Deadline.of(resolved, started=started_at)
            assert deadline is not None
            assert deadline.at - started_at == 11 * 3600, told
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_run_that_must_begin_anew_says_how_it_goes_on(ranks: Any, tmp_path: Path) -> None:
    """The same command would not: it names where to begin."""
    made = config(chats(tmp_path), "1", tmp_path / "run", checkpoint={"resume": "never"})
    part = started(ranks, made, 2)
    assert part.summary["stopped"] == (
        "after step 2 of 6 (a test); with checkpoint.resume auto, the same command goes on from "
        f"{tmp_path}/run/step-00000002"
    )


def test_asked_in_its_last_step_a_run_just_ends(ranks: Any, tmp_path: Path) -> None:
    made = config(chats(tmp_path), "1", tmp_path / "run", train={"max_steps": 2})
    whole = started(ranks, made, 2)
    assert "stopped" not in whole.summary
    assert (tmp_path / "run/model").is_dir()


def test_a_moment_that_has_passed_is_refused(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 18, 0).astimezone()
    for moment in ("2026-11-30T17:59", "2020-01-01T00:00"):
        resolved = resolve(config(tmp_path, "1", tmp_path, checkpoint={"save_before": moment}))
        with pytest.raises(UserError) as caught:
            Deadline.of(resolved, started=now.timestamp())
        assert str(caught.value) == (
            f"checkpoint.save_before {moment} has passed: it is 2026-11-30T18:00; set a later one, or a time "
            "of day (checkpoint section of config)"
        )
    for told, seconds in (("17:59", 86_340), ("18:01", 60), ("2026-11-30T18:00:05", 5)):
        resolved = resolve(config(tmp_path, "1", tmp_path, checkpoint={"save_before": told}))
        deadline = Deadline.of(resolved, started=now.timestamp())
        assert deadline is not None
        assert deadline.at - now.timestamp() == seconds
    both = {"save_before": "18:01", "time_limit": "0:00:30"}
    first = Deadline.of(resolve(config(tmp_path, "1", tmp_path, checkpoint=both)), started=now.timestamp())
    assert first == Deadline(now.timestamp() + 30, "checkpoint.time_limit 0:00:30")
    assert now + timedelta(seconds=30) == datetime.fromtimestamp(first.at).astimezone()


def test_nobody_is_asked_before_steps_begin() -> None:
    signals = StopSignals()
    assert not signals.ask("too early")
    assert signals.asked() == ""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        signals.arm()
        assert signals.ask("torchrun has ended")
        assert signals.asked() == "torchrun has ended"
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.asked() == "SIGUSR1"
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- processes --


def config_file(folder: Path, **checkpoint: Any) -> Path:
    """A run of 40 steps on two ranks; torchrun says how many there are."""
    made = config(
        chats(folder),
        "2 TP2",
        folder / "run",
        train={"max_steps": 40},
        checkpoint={"save_every": 1000, **checkpoint},
    )
    del made["cluster"]["world_size"]
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


def local(file: Path, *arguments: str) -> Launch:
    return Launch("train", str(file), "--cluster.world_size", "2", *arguments, module="rankloom")


def under_torchrun(file: Path, *options: str) -> Launch:
    module = "torch.distributed.run --standalone --nproc-per-node 2 " + " ".join(options)
    return Launch("-m", "rankloom", "train", str(file), module=module.strip())


def num_rows(file: Path) -> int:
    found = file.parent / "run/metrics.jsonl"
    return found.read_text().count("\n") if found.exists() else 0


def in_steps(launch: Launch, file: Path) -> None:
    before = num_rows(file)
    until(lambda: launch.process.poll() is not None or num_rows(file) > before + 1)


@pytest.fixture(scope="module")
def undisturbed(rank_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of 40 steps."""
    file = config_file(tmp_path_factory.mktemp("undisturbed"))
    made = yaml.safe_load(file.read_text())
    made["cluster"]["world_size"] = 2
    started(rank_pool.run, made)
    return metrics(file.parent / "run")


def goes_on(file: Path, undisturbed: list[dict[str, Any]], *, left: list[str]) -> None:
    """The checkpoint of the last step that was taken is there, and the same steps follow from it."""
    assert left == []
    last = num_rows(file)
    assert last < 40
    assert [found.step for found in list_checkpoints(file.parent / "run") if found.complete] == [last]
    code, _, err = local(file).end()
    assert code == 0, err
    assert f"goes on with step {last + 1} of 40" in err
    assert without(metrics(file.parent / "run"), TIMES) == without(undisturbed, TIMES)


@LINUX
@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, ()), (signal.SIGUSR1, ("--signals-to-handle", "SIGTERM,SIGUSR1"))],
    ids=["SIGTERM", "SIGUSR1"],
)
def test_a_signal_that_torchrun_passes_on(
    tmp_path: Path, undisturbed: Any, number: signal.Signals, options: tuple[str, ...]
) -> None:
    """Its exit code is its own: 1 after a signal."""
    file = config_file(tmp_path)
    launch = under_torchrun(file, *options)
    in_steps(launch, file)
    launch.process.send_signal(number)
    code, out, _ = launch.end()
    assert code == 1
    assert (
        f"stopped  after step {num_rows(file)} of 40 ({number.name}); the same command goes on from " in out
    )
    goes_on(file, undisturbed, left=launch.left())


@LINUX
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_ranks_end_well_without_their_torchrun(
    tmp_path: Path, undisturbed: Any, number: signal.Signals
) -> None:
    """Neither signal is passed on: the ranks see that they are alone."""
    file = config_file(tmp_path)
    launch = under_torchrun(file)
    in_steps(launch, file)
    launch.process.send_signal(number)
    code, out, _ = launch.end()
    assert code == -number
    assert f"stopped  after step {num_rows(file)} of 40 (torchrun has ended); the same command" in out
    goes_on(file, undisturbed, left=launch.left())


@LINUX
@pytest.mark.long
@pytest.mark.parametrize("save_every", [0, 1000])
def test_ranks_that_save_nothing_yet_end_with_their_torchrun(tmp_path: Path, save_every: int) -> None:
    """In start-up, and without checkpoints in steps."""
    file = config_file(tmp_path, save_every=save_every)
    launch = under_torchrun(file, "--max-restarts", "0")
    if save_every:
        until(lambda: len(launch.left()) == 3)
        time.sleep(2.5)
    else:
        in_steps(launch, file)
    launch.process.kill()
    launch.end()
    until(lambda: launch.left() == [], timeout_s=30)
    assert not any((file.parent / "run").glob("step-*"))


@LINUX
@pytest.mark.long
def test_a_signal_in_start_up(tmp_path: Path) -> None:
    """There is nothing to save; what was saved before stays."""
    file = config_file(tmp_path, save_every=2)
    launch = local(file, "--train.max_steps", "4")
    assert launch.end()[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (file.parent / "run").glob("step-*/*")}
    launch = local(file)
    until(lambda: len(launch.left()) >= 4)
    launch.process.send_signal(signal.SIGTERM)
    code, _, err = launch.end()
    assert (code, launch.left()) == (130, [])
    assert err.splitlines()[-1] == "rankloom train: interrupted"
    assert {path: path.stat().st_mtime_ns for path in (file.parent / "run").glob("step-*/*")} == before
    assert num_rows(file) == 4


@LINUX
@pytest.mark.long
def test_a_signal_in_a_save(tmp_path: Path, undisturbed: Any) -> None:
    """That save comes to its end, and that of the step the run ends after too."""
    file = config_file(tmp_path, save_every=5, keep=None)
    launch = local(file)
    until(lambda: launch.process.poll() is not None or any((file.parent / "run").glob("*.partial")))
    launch.process.send_signal(signal.SIGTERM)
    code, out, err = launch.end()
    assert code == 0, err
    last = num_rows(file)
    assert f"stopped  after step {last} of 40 (SIGTERM)" in out
    steps = [found.step for found in list_checkpoints(file.parent / "run") if found.complete]
    assert steps == sorted({5, last} | {step for step in (10, 15) if step < last})
    branch(file.parent / "run", tmp_path / "again", step=5)
    code, _, err = local(file, "--checkpoint.dir", str(tmp_path / "again")).end()
    assert code == 0, err
    assert without(metrics(tmp_path / "again"), TIMES) == without(undisturbed, TIMES)
