"""Whole runs that stop and go on: in the same layout the same bits, in another one the same samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.errors import UserError
from rankloom.train.session import Session
from tests.runtime.runs import Recorder, settings, write_chats

TP, W, Q, CP, ORDER = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "rank_order",
)
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (2, {TP: 2}),
    (3, {W: 3, Q: 3}),
    (4, {W: 4}),
    (4, {TP: 2, W: 4}),
    (4, {W: 2, CP: 2}),
    (6, {W: 6, Q: 3}),
    (8, {TP: 2, W: 4, Q: 4, CP: 2, ORDER: "tp-cp-gtp-dp-pp"}),
]
EXACT = ("loss", "grad_norm", "lr", "valid_tokens", "epoch", "global_batch_size", "eval_loss")
COUNTS = ("step", "consumed_samples", "consumed_chats", "consumed_tokens")


def run(
    rank: int, world_size: int, config: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[Any], list[str], Mapping[str, Any]] | str:
    """A run on this rank: rows, the records of each step, notes and summary; or why it was refused."""
    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder, records = Recorder(), []
    try:
        session = Session.start(resolved, comm, reporter=recorder)
    except UserError as error:
        comm.close()
        return str(error)
    if session.first_step <= session.max_steps:
        session.begin()
    for step in range(session.first_step, session.max_steps + 1):
        session.advance(step)
        lanes = session.worker.batches.report(step - 1)
        records.append(
            sorted(name.split("/")[-1] for rows in lanes for row in rows for name in row["records"])
        )
    summary = session.finish()
    comm.close()
    return [dict(row) for row in recorder.rows], records, recorder.notes, summary


def config(folder: Path, world: int, parallel: Mapping[str, Any], steps: int, **sections: Any) -> Any:
    """A run that saves every third step; its folder is that of all runs with the same ``folder``."""
    if not (folder / "chats.jsonl").exists():
        write_chats(folder / "chats.jsonl", count=40)
    sections = {name: dict(values) for name, values in sections.items()}
    sections["train"] = {"global_batch_size": 12, "max_steps": steps, **sections.get("train", {})}
    sections["schedule"] = {"warmup_samples": 20, "decay_samples": 120, **sections.get("schedule", {})}
    sections["checkpoint"] = {"save_every": 3, **sections.get("checkpoint", {})}
    return settings(folder, parallel=parallel, world_size=world, **sections)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def told(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(folder / "run/model/model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def two(tmp_path: Path) -> tuple[Path, Path]:
    folders = tmp_path / "whole", tmp_path / "parts"
    for folder in folders:
        folder.mkdir()
    return folders


def check_three_and_three(ranks: Any, tmp_path: Path, world: int, parallel: Any, **sections: Any) -> None:
    whole, parts = two(tmp_path)
    rows, records, _, _ = ranks(world, run, config(whole, world, parallel, 6, **sections), timeout_s=120)[0]
    first = ranks(world, run, config(parts, world, parallel, 3, **sections), timeout_s=120)[0]
    second = ranks(world, run, config(parts, world, parallel, 6, **sections), timeout_s=120)[0]
    assert told(first[0] + second[0], *COUNTS, *EXACT) == told(rows, *COUNTS, *EXACT)
    assert told(metrics(parts), *COUNTS, *EXACT) == told(metrics(whole), *COUNTS, *EXACT)
    assert first[1] + second[1] == records
    assert same_weights(whole, parts)
    assert "goes on with step 4 of 6" in second[2]
    assert second[3]["consumed_samples"] == rows[-1]["consumed_samples"]


@pytest.mark.long
@pytest.mark.parametrize(("world", "parallel"), [(4, {TP: 2, W: 4}), (4, {W: 2, CP: 2})], ids=str)
def test_three_and_three_steps_are_six(ranks: Any, tmp_path: Path, world: int, parallel: Any) -> None:
    """12 rows a step of 25 an epoch: steps 3 and 5 end an epoch, with fillers."""
    check_three_and_three(ranks, tmp_path, world, parallel, data={"packing": False, "num_workers": 0})


@pytest.mark.long
@pytest.mark.parametrize(("world", "parallel"), LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_three_and_three_steps_are_six_everywhere(
    ranks: Any, tmp_path: Path, world: int, parallel: Any, dtype: str
) -> None:
    sections = {
        "model": {"dtype": dtype},
        "data": {"num_workers": 2, "validation_split": 0.2},
        "train": {"eval_every": 3, "rampup_batch_size": None, "gradient_checkpointing": True},
    }
    check_three_and_three(ranks, tmp_path, world, parallel, **sections)


def check_goes_on_elsewhere(ranks: Any, tmp_path: Path, layouts: list[tuple[int, Any]]) -> None:
    """Each of the layouts trains three steps more; an undisturbed run in the first of them is the measure."""
    whole, parts = two(tmp_path)
    steps = 3 * len(layouts)
    world, parallel = layouts[0]
    rows, records, _, _ = ranks(world, run, config(whole, world, parallel, steps), timeout_s=240)[0]
    trained = []
    for number, (world, parallel) in enumerate(layouts, start=1):
        end = 3 * number
        result = ranks(world, run, config(parts, world, parallel, end), timeout_s=240)[0]
        trained += result[1]
        if number > 1:
            assert any(note.startswith("saved on ") for note in result[2])
    found = metrics(parts)
    assert told(found, *COUNTS, "lr", "valid_tokens") == told(rows, *COUNTS, "lr", "valid_tokens")
    assert trained == records
    for mine, theirs in zip(found, rows, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


@pytest.mark.long
def test_a_run_goes_on_in_other_layouts(ranks: Any, tmp_path: Path) -> None:
    """4 lanes, then 2, then 1 on one rank: a resume of a resume."""
    check_goes_on_elsewhere(ranks, tmp_path, [(4, {W: 4}), (4, {TP: 2, W: 4, Q: 2}), (1, {})])


@pytest.mark.long
@pytest.mark.parametrize("shift", range(8))
def test_a_run_goes_on_in_eight_layouts(ranks: Any, tmp_path: Path, shift: int) -> None:
    check_goes_on_elsewhere(ranks, tmp_path, [LAYOUTS[(shift + 3 * n) % 8] for n in range(8)])


def test_what_has_changed_is_said_or_refused(ranks: Any, tmp_path: Path) -> None:
    ranks(2, run, config(tmp_path, 2, {W: 2}, 3), timeout_s=120)
    both = {"train": {"global_batch_size": 24}, "optimizer": {"lr": 1e-3}}
    notes = ranks(2, run, config(tmp_path, 2, {W: 2}, 4, **both), timeout_s=120)[0][2]
    assert "changed: optimizer.lr was 0.003, now it is 0.001" in notes
    assert "train.global_batch_size was 12, now it is 24; rows are cut so from here on" in notes
    assert not any("changed: train.global_batch_size" in note for note in notes)

    other = config(tmp_path, 2, {W: 2}, 5)
    other["model"]["config"]["rms_norm_eps"] = 1e-3
    refused = ranks(2, run, other, timeout_s=120)
    assert refused[0] == refused[1]
    assert "was saved with another model: model.config.rms_norm_eps was 1e-06" in refused[0]
    other["checkpoint"]["allow_changes"] = ["model.config.rms_norm_eps"]
    assert len(ranks(2, run, other, timeout_s=120)[0][0]) == 1

    other["data"]["seed"] = 7
    refused = ranks(2, run, other, timeout_s=120)[0]
    assert "the run cannot continue in its data: data.seed was 0, now it is 7" in refused
    other["checkpoint"]["allow_changes"] = ["model.config.*", "data.seed"]
    other["train"]["max_steps"] = 6
    rows, _, notes, _ = ranks(2, run, other, timeout_s=120)[0]
    assert [row["step"] for row in rows] == [6]
    assert any(note.startswith("the data is started anew with epoch") for note in notes)


def test_other_records_are_refused_by_both_names(ranks: Any, tmp_path: Path) -> None:
    ranks(1, run, config(tmp_path, 1, {}, 3), timeout_s=120)
    write_chats(tmp_path / "others.jsonl", count=30, seed=9)
    given = config(tmp_path, 1, {}, 6, data={"train": str(tmp_path / "others.jsonl")})
    refused = ranks(1, run, given, timeout_s=120)[0]
    assert "it was saved with the data" in refused
    assert str(tmp_path / "chats.jsonl") in refused
    assert str(tmp_path / "others.jsonl") in refused


def test_a_run_that_is_there_already_says_so(ranks: Any, tmp_path: Path) -> None:
    before = ranks(1, run, config(tmp_path, 1, {}, 3), timeout_s=120)[0][0]
    rows, _, notes, summary = ranks(1, run, config(tmp_path, 1, {}, 3), timeout_s=120)[0]
    assert rows == []
    assert "nothing is left to train: all 3 steps are done" in notes
    assert summary["consumed_samples"] == before[-1]["consumed_samples"] > 0
    assert len(metrics(tmp_path)) == 3


def test_a_damaged_checkpoint_is_passed_over_by_auto_alone(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 2, {W: 2}, 6)
    ranks(2, run, given, timeout_s=120)
    file = tmp_path / "run/step-00000006/rank-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    named = {**given, "checkpoint": {**given["checkpoint"], "resume": str(tmp_path / "run/step-00000006")}}
    refused = ranks(2, run, named, timeout_s=120)
    assert refused[0] == refused[1]
    assert "rank-00001.safetensors was altered after writing" in refused[0]
    rows, _, notes, _ = ranks(2, run, given, timeout_s=120)[0]
    assert [row["step"] for row in rows] == [4, 5, 6]
    (warning,) = [note for note in notes if note.startswith("warning: ")]
    assert "rank-00001.safetensors was altered after writing" in warning
    assert f"resumed from {tmp_path / 'run/step-00000003'}" in notes
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_never_begins_anew_and_a_path_goes_back(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 1, {}, 6, checkpoint={"keep": None})
    ranks(1, run, given, timeout_s=120)
    back = {**given, "checkpoint": {**given["checkpoint"], "resume": str(tmp_path / "run/step-00000003")}}
    rows, _, notes, _ = ranks(1, run, back, timeout_s=120)[0]
    assert [row["step"] for row in rows] == [4, 5, 6]
    assert any("holds checkpoints of later steps" in note for note in notes)
    anew = {**given, "checkpoint": {**given["checkpoint"], "resume": "never"}}
    rows, _, notes, _ = ranks(1, run, anew, timeout_s=120)[0]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert any("this run starts anew" in note for note in notes)
