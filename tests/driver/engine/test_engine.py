"""Whole runs on a Ray cluster: the same as those of the local engine, whatever is lost on the way."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankloom.config import resolve
from rankloom.driver.connection import RayCluster
from rankloom.driver.engine import run_ray
from rankloom.errors import RunError, UserError
from tests.driver.engine import broken, test_data
from tests.driver.engine.faults import Strikes, Striking, ranks_running
from tests.runtime.runs import Recorder, run, settings, write_chats

W, CP = "tensor_parallel_num_weight_shards", "context_parallel_size"


def config(folder: Path, *, world: int, steps: int, name: str = "run", **sections: Any) -> dict[str, Any]:
    """A schedule that does not know the number of steps, so that a run can be taken up."""
    (folder / "chats.jsonl").exists() or write_chats(folder / "chats.jsonl")
    made = settings(folder, parallel={W: 2}, world_size=world, **sections)
    made["train"]["max_steps"] = steps
    made["schedule"] = {"decay": "constant"}
    made["checkpoint"] = {"dir": str(folder / name), "save_every": 2, **sections.get("checkpoint", {})}
    return made


def rows_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    file = Path(config["checkpoint"]["dir"]) / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def losses(config: Mapping[str, Any]) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows_of(config)}


@pytest.mark.long
def test_each_engine_goes_on_from_a_checkpoint_of_the_other(
    cluster: RayCluster, ranks: Any, tmp_path: Path
) -> None:
    whole = config(tmp_path, world=4, steps=6, name="whole")
    ranks(4, run, whole)
    ranks(4, run, config(tmp_path, world=4, steps=2))
    recorder = Recorder()
    summary = run_ray(resolve(config(tmp_path, world=4, steps=4)), reporter=recorder)
    assert summary["steps"] == 2
    assert f"resumed from {tmp_path / 'run' / 'step-00000002'}" in recorder.notes
    assert ranks_running() == []
    ranks(4, run, config(tmp_path, world=4, steps=6))
    found, wanted = (rows_of(config(tmp_path, world=4, steps=6, name=name)) for name in ("run", "whole"))
    for row, other in zip(found, wanted, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-6)
        for key in ("step", "lr", "consumed_samples", "consumed_tokens", "valid_tokens", "epoch", "padding"):
            assert row[key] == other[key]
    placement = json.loads((tmp_path / "run" / "placement.json").read_text())
    assert [place["rank"] for place in placement["ranks"]] == [0, 1, 2, 3]
    assert {place["address"] for place in placement["ranks"]} == {"127.0.0.1"}


def test_a_run_that_loses_a_rank_goes_on_from_its_last_checkpoint(
    cluster: RayCluster, ranks: Any, tmp_path: Path
) -> None:
    whole = config(tmp_path, world=2, steps=6, name="whole")
    ranks(2, run, whole)
    struck = config(tmp_path, world=2, steps=6, checkpoint={"resume": "never", "background": False})
    struck["cluster"]["restarts"] = 1
    recorder = Striking(1, 3)
    run_ray(resolve(struck), reporter=recorder)
    assert losses(struck) == pytest.approx(losses(whole), rel=1e-6)
    [told] = [note for note in recorder.notes if "restart 1 of 1" in note]
    assert told.startswith("rank 1 (tp 0, ")
    assert [row["step"] for row in recorder.rows] in ([1, 2, 3, 3, 4, 5, 6], [1, 2, 3, 4, 3, 4, 5, 6])
    assert ranks_running() == []


@pytest.mark.long
def test_the_last_loss_is_reported_and_a_users_error_is_not_tried_again(
    cluster: RayCluster, tmp_path: Path
) -> None:
    struck = config(tmp_path, world=2, steps=6)
    recorder = Striking(1, 1)
    with pytest.raises(RunError, match=r"rank 1 \(tp 0, .*failed in (train|load_batch), step .* on node .*"):
        run_ray(resolve(struck), reporter=recorder)
    assert ranks_running() == []
    changed = config(tmp_path, world=2, steps=6)
    changed["checkpoint"]["resume"] = str(tmp_path / "nowhere")
    changed["cluster"]["restarts"] = 3
    again = Recorder()
    with pytest.raises(UserError, match="nowhere"):
        run_ray(resolve(changed), reporter=again)
    assert not any("restart" in note for note in again.notes)


@pytest.mark.long
def test_energon_on_four_lanes(cluster: RayCluster, ranks: Any, tmp_path: Path) -> None:
    test_data.prepared(tmp_path, "energon")
    checkpoint = {"dir": str(tmp_path / "whole")}
    whole = test_data.config(tmp_path, source="energon", checkpoint=checkpoint)
    ranks(4, run, whole, timeout_s=120)
    given = test_data.config(tmp_path, source="energon", checkpoint={"save_every": 2})
    assert resolve(given).layout.batch_parallel_size == 4
    run_ray(resolve(given), reporter=Recorder())
    assert losses(given) == pytest.approx(losses(whole), rel=1e-6)


@pytest.mark.long
def test_ranks_are_killed_at_any_moment(cluster: RayCluster, ranks: Any, tmp_path: Path) -> None:
    """Also while they start; the losses are those of the run that nothing happened to."""
    whole = config(tmp_path, world=2, steps=60, name="whole")
    ranks(2, run, whole, timeout_s=120)
    struck = config(tmp_path, world=2, steps=60, checkpoint={"save_every": 1})
    struck["cluster"]["restarts"] = 4
    with Strikes(seed=7, number=4) as strikes:
        run_ray(resolve(struck), reporter=Recorder())
    assert strikes.done >= 1
    found, wanted = losses(struck), losses(whole)
    assert list(found) == list(wanted)
    assert found == pytest.approx(wanted, rel=1e-6)
    assert ranks_running() == []


@pytest.mark.long
def test_ranks_are_stopped_at_any_moment_of_a_step(cluster: RayCluster, ranks: Any, tmp_path: Path) -> None:
    """In a collective the others name it, behind its last one the controller does."""
    whole = config(tmp_path, world=2, steps=200, name="whole")
    ranks(2, run, whole, timeout_s=240)
    struck = config(tmp_path, world=2, steps=200, checkpoint={"save_every": 5})
    struck["cluster"]["restarts"] = 6
    struck["comm"] = {"timeout_s": 8}
    recorder = Recorder()
    seen: list[int] = []

    def in_steps() -> bool:
        """Some steps after the last strike, so that ranks are no longer starting."""
        due = len(recorder.rows) > (seen[-1] + 3 if seen else 0)
        seen.extend([len(recorder.rows)] * due)
        return due

    strikes = Strikes(seed=11, number=6, within_s=1.5, signal_number=signal.SIGSTOP, due=in_steps)
    with strikes:
        run_ray(resolve(struck), reporter=recorder)
    assert strikes.done == 6
    notes = [note for note in recorder.notes if " of 6, on " in note]
    assert len(notes) == 6
    assert all("shows no sign of life" in note or "did not come back" in note for note in notes), notes
    assert losses(struck) == pytest.approx(losses(whole), rel=1e-6)
    assert ranks_running() == []


@pytest.mark.long
def test_a_lane_that_cannot_be_read_ends_the_run(cluster: RayCluster, tmp_path: Path) -> None:
    """Rows 24 to 31 are of step 4, which is loaded while step 3 is trained on. It is not tried again."""
    given = config(tmp_path, world=2, steps=6)
    given["cluster"]["restarts"] = 1
    recorder = Recorder()
    with pytest.raises(RunError, match=r"^lane 1: its rows cannot be read: OSError: the disk is gone"):
        run_ray(resolve(given), reporter=recorder, factory=broken.cannot_read)
    assert [row["step"] for row in recorder.rows][:2] == [1, 2]
    assert len(recorder.rows) <= 3
    assert (tmp_path / "run" / "step-00000002" / "checkpoint.json").is_file()
    assert ranks_running() == []


@pytest.mark.long
def test_a_lane_that_is_never_read_ends_the_run(cluster: RayCluster, tmp_path: Path) -> None:
    """Nobody else waits in a collective before the first step."""
    given = config(tmp_path, world=2, steps=6)
    given["comm"] = {"timeout_s": 8}
    with pytest.raises(
        RunError, match=r"^rank 1 \(tp 0, .*\) failed in load_batch, step 1: loading the rows of"
    ):
        run_ray(resolve(given), reporter=Recorder(), factory=broken.never_reads)
    assert ranks_running() == []


@pytest.mark.long
def test_a_rank_that_does_not_come_back_from_a_step_ends_the_run(cluster: RayCluster, tmp_path: Path) -> None:
    """Its part of the step is done, so that no other rank waits for it."""
    given = config(tmp_path, world=2, steps=6)
    given["comm"] = {"timeout_s": 8}
    recorder = Recorder()
    wanted = (
        r"^rank 1 \(tp 0, .*\) failed in train, .* did not come back from train within 18 s after the first"
    )
    with pytest.raises(RunError, match=wanted):
        run_ray(resolve(given), reporter=recorder, factory=broken.never_returns)
    assert [row["step"] for row in recorder.rows] == [1, 2]
    assert ranks_running() == []


def test_too_many_ranks_are_refused_within_seconds(cluster: RayCluster, tmp_path: Path) -> None:
    wide = config(tmp_path, world=16, steps=6)
    wide["train"]["global_batch_size"] = 16
    with pytest.raises(UserError, match=r"cluster.world_size 16 needs 16 CPUs, usable 9"):
        run_ray(resolve(wide), reporter=Recorder())
