"""Steps whose gradient is not finite, in whole runs: skipped and counted, or the end of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.errors import RunError
from tests.runtime.runs import Recorder, settings, write_chats


def run(rank: int, world_size: int, config: dict[str, Any]) -> tuple[dict[str, Any] | str, list[str]]:
    """Four steps, of which only the second has a finite gradient; the summary or the error, and the notes."""
    import torch

    from rankloom.comm import Communicator
    from rankloom.config import resolve
    from rankloom.optim import ShardedAdamW
    from rankloom.train.loop import run_connected

    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder, norm, calls = Recorder(), ShardedAdamW.norm_and_wishes, iter(range(4))

    def spoiled(self: ShardedAdamW, divisor: int, *, wish: bool) -> tuple[float, int]:
        value, wishes = norm(self, divisor, wish=wish)
        return value if next(calls) == 1 else float("nan"), wishes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedAdamW, "norm_and_wishes", spoiled)
        try:
            end: Any = dict(run_connected(resolved, comm, reporter=recorder))
        except RunError as error:
            end = str(error)
    end = end if isinstance(end, str) else {**end, "phase": comm.activity.phase}
    comm.close()
    return end, recorder.notes


def config(folder: Path, on_nonfinite: str) -> dict[str, Any]:
    write_chats(folder / "chats.jsonl")
    train = {"max_steps": 4, "on_nonfinite": on_nonfinite}
    return settings(folder, parallel={"tensor_parallel_num_weight_shards": 2}, world_size=2, train=train)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def test_skipped_steps_are_counted_and_said(ranks: Any, tmp_path: Path) -> None:
    summary, notes = ranks(2, run, config(tmp_path, "skip"))[0]
    assert (summary["steps"], summary["skipped_steps"]) == (4, 3)
    assert summary["phase"].startswith("end: ")
    assert [row["grad_norm"] is None for row in rows(tmp_path)] == [True, False, True, True]
    told = [note for note in notes if note.startswith("step ")]
    assert len(told) == 3
    assert "gradient norm nan; no lane's loss is at fault; nothing was updated" in told[0]
    assert (tmp_path / "run/model/rankloom.json").exists()


def test_a_step_that_stops_the_run_has_its_row(ranks: Any, tmp_path: Path) -> None:
    message, _ = ranks(2, run, config(tmp_path, "stop"))[0]
    assert "train.on_nonfinite: skip would go on" in message
    (row,) = rows(tmp_path)
    assert (row["step"], row["grad_norm"]) == (1, None)
    assert (tmp_path / "run/nonfinite/step-1.json").exists()
