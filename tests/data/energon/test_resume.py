"""A run on an Energon data set that stops and goes on with other numbers of lanes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from tests.data.energon.datasets import prepare
from tests.data.energon.test_training import config
from tests.runtime.runs import write_chats
from tests.train.test_resume import COUNTS, run, told

W, CP = "tensor_parallel_num_weight_shards", "context_parallel_size"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("resume")
    write_chats(made / "chats.jsonl")
    prepare(made / "chats.jsonl")
    return made


def resumable(folder: Path, out: Path, world: int, parallel: dict[str, int], steps: int) -> dict[str, Any]:
    made = config(folder, parallel=parallel, world=world, train={"max_steps": steps})
    made["checkpoint"] = {"dir": str(out), "save_every": 3}
    made["schedule"] = {**made.get("schedule", {}), "decay_samples": 100}
    return made


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_four_lanes_then_two_then_eight(ranks: Any, folder: Path, tmp_path: Path) -> None:
    """The samples of every step are those of a run on 4 lanes that nobody stopped; 9 steps of 8 rows."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rows, records, _, _ = ranks(4, run, resumable(folder, whole, 4, {W: 4}, 9), timeout_s=240)[0]
    trained = []
    for world, parallel, end in ((4, {W: 4}, 3), (4, {W: 2, CP: 2}, 6), (8, {W: 4}, 9)):
        result = ranks(world, run, resumable(folder, parts, world, parallel, end), timeout_s=240)[0]
        trained += result[1]
    assert trained == records
    assert sum(map(len, records)) == rows[-1]["consumed_chats"]
    found = metrics(parts)
    assert told(found, *COUNTS, "lr", "valid_tokens", "epoch") == told(
        rows, *COUNTS, "lr", "valid_tokens", "epoch"
    )
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in rows], rel=1e-5)


def test_the_same_lanes_go_on_with_the_same_bits(ranks: Any, folder: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rows = ranks(2, run, resumable(folder, whole, 2, {W: 2}, 6), timeout_s=240)[0][0]
    for end in (3, 6):
        ranks(2, run, resumable(folder, parts, 2, {W: 2}, end), timeout_s=240)
    assert told(metrics(parts), *COUNTS, "loss", "grad_norm") == told(rows, *COUNTS, "loss", "grad_norm")


def test_another_seed_is_refused(ranks: Any, folder: Path, tmp_path: Path) -> None:
    ranks(1, run, resumable(folder, tmp_path, 1, {}, 3), timeout_s=240)
    other = resumable(folder, tmp_path, 1, {}, 6)
    other["data"] = {**other["data"], "seed": 5}
    refused = ranks(1, run, other, timeout_s=240)[0]
    assert "the run cannot continue in its data: data.seed was 0, now it is 5" in refused
