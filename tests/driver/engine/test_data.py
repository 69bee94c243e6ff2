"""Loading a step ahead leaves the run's place in its data exact; what one lane cannot read ends the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.checkpoint import read_manifest
from rankloom.train.stopping import Deadline
from tests.driver.engine.spmd import run_controlled
from tests.pool import RanksFailed
from tests.runtime.runs import run, settings, write_chats


def config(folder: Path, *, source: str, **sections: Any) -> dict[str, Any]:
    """Four ranks, four lanes."""
    if source == "energon":
        sections["data"] = {
            "train": None,
            "source": "energon",
            "path": str(folder / "chats.jsonl"),
            "num_virtual_lanes": 8,
            "packing_window": 4,
        }
    made = settings(folder, parallel={"tensor_parallel_num_weight_shards": 2}, world_size=4, **sections)
    made["train"]["max_steps"] = 6
    return made


def prepared(folder: Path, source: str) -> None:
    write_chats(folder / "chats.jsonl")
    if source == "energon":
        pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")
        from tests.data.energon.datasets import prepare

        prepare(folder / "chats.jsonl")


@pytest.mark.parametrize("source", ["chats", "energon"])
def test_a_checkpoint_says_what_was_trained_not_what_was_loaded(
    ranks: Any, tmp_path: Path, source: str
) -> None:
    prepared(tmp_path, source)
    places = {}
    for name, body in (("loop", run), ("controlled", run_controlled)):
        checkpoint = {"dir": str(tmp_path / name), "save_every": 2, "keep": None}
        given = config(tmp_path, source=source, checkpoint=checkpoint)
        ranks(4, body, given, timeout_s=120)
        manifests = [read_manifest(tmp_path / name / f"step-{step:08d}") for step in (2, 4, 6)]
        places[name] = [(manifest.state, manifest.rank_state) for manifest in manifests]
    assert places["controlled"] == places["loop"]
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in places
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("source", [pytest.param("chats", marks=pytest.mark.long), "energon"])
def test_a_run_that_was_ended_early_goes_on_with_what_it_had_loaded(
    ranks: Any, tmp_path: Path, source: str
) -> None:
    prepared(tmp_path, source)
    whole = config(tmp_path, source=source, checkpoint={"dir": str(tmp_path / "whole")})
    ended = config(tmp_path, source=source, checkpoint={"save_every": 100})
    wanted = ranks(4, run, whole, timeout_s=120)[0]
    first, summary = ranks(4, run_controlled, ended, 3, timeout_s=120)[0]
    assert str(summary["stopped"]).startswith("after step 3 of 6 (SIGTERM)")
    rest, _ = ranks(4, run_controlled, ended, timeout_s=120)[0]
    assert [row["step"] for row in (*first, *rest)] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in (*first, *rest)] == [row["loss"] for row in wanted]


def test_a_run_ends_before_its_deadline(ranks: Any, tmp_path: Path) -> None:
    """What the driver made of the settings reaches the first rank, which looks at its clock."""
    prepared(tmp_path, "chats")
    given = config(tmp_path, source="chats", checkpoint={"time_limit": "0:00:01"})
    deadline = Deadline(0.0, "checkpoint.time_limit 0:00:01")
    rows, summary = ranks(4, run_controlled, given, 0, deadline)[0]
    assert len(rows) == 1
    assert str(summary["stopped"]).startswith("after step 1 of 6 (checkpoint.time_limit 0:00:01)")
    assert read_manifest(tmp_path / "run" / "step-00000001").step == 1


def test_a_bad_sample_of_one_lane_ends_the_run_and_is_named(ranks: Any, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl")
    pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")
    from tests.data.energon.datasets import prepare

    lines = (tmp_path / "chats.jsonl").read_text().splitlines()
    lines[60] = '{"messages": [{"role": "nobody", "content": "?"}]}'
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    prepare(tmp_path / "chats.jsonl")
    with pytest.raises(RanksFailed, match=r"chats.jsonl.*nobody"):
        ranks(4, run_controlled, config(tmp_path, source="energon"), timeout_s=120)
