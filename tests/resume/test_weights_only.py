"""New runs from the weights of a checkpoint, from an imported folder; folders that a run and its checkpoints
are exported to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rankloom.checkpoint import export_checkpoint, import_folder, read_manifest
from rankloom.errors import RunError
from rankloom.train.worker import Worker
from tests.parity.problems import FAMILIES
from tests.resume.runs import (
    TIMES,
    Outcome,
    assert_equal_bits,
    chats,
    config,
    metrics,
    refused,
    started,
    tensors,
    train,
    without,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def first(rank_pool: Any, folder: Path) -> Outcome:
    """A run of six steps with exports of every second; its last row has a loss on the training records."""
    made = config(
        folder,
        "4 TP2 W4",
        folder / "first",
        model={"config": FAMILIES["llama_biases_tied"]},
        data={"validation": str(folder / "chats.jsonl")},
        train={"eval_every": 3},
        checkpoint={"export_every": 2},
    )
    return started(rank_pool.run, made)


def from_weights(folder: Path, path: Path, directory: Path) -> dict[str, Any]:
    """A run of two steps whose first batch is the whole data, so that its first loss is an evaluation."""
    train = {"max_steps": 2, "global_batch_size": 44, "micro_batch_size": 2}
    return config(folder, "2 TP2", directory, model={"config": None, "path": str(path)}, train=train)


def test_a_new_run_starts_with_the_weights_alone(
    ranks: Any, folder: Path, first: Outcome, tmp_path: Path
) -> None:
    """Its first loss is the evaluation of the run that saved them; moments, counts and schedule are new."""
    given = from_weights(folder, folder / "first/step-00000006", tmp_path / "run")
    fresh = started(ranks, given)
    assert fresh.rows[0]["loss"] == pytest.approx(first.rows[-1]["eval_loss"], rel=1e-6)
    assert fresh.rows[0]["valid_tokens"] == first.rows[-1]["eval_tokens"]
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2]
    assert fresh.rows[0]["consumed_samples"] == 44
    assert [row["row"] for row in fresh.samples[1]] == list(range(44))
    assert read_manifest(tmp_path / "run/step-00000002").num_updates == 2
    assert not any(note.startswith(("resumed", "changed")) for note in fresh.notes)
    exported = from_weights(folder, folder / "first/model", tmp_path / "other")
    again = started(ranks, exported)
    assert without(again.rows, TIMES) == without(fresh.rows, TIMES)


def test_a_start_from_damaged_weights_is_refused(
    ranks: Any, folder: Path, first: Outcome, tmp_path: Path
) -> None:
    damaged = tmp_path / "step-00000006"
    shutil.copytree(folder / "first/step-00000006", damaged)
    given = from_weights(folder, damaged, tmp_path / "run")
    file = damaged / "rank-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    altered = f"the checkpoint {damaged} is damaged: rank-00002.safetensors was altered after writing"
    assert altered in refused(ranks, given)
    file.unlink()
    missing = f"the checkpoint {damaged} is damaged: rank-00002.safetensors is missing"
    assert missing in refused(ranks, given)


def test_an_imported_folder_is_trained_from_step_zero(
    ranks: Any, folder: Path, first: Outcome, tmp_path: Path
) -> None:
    """As the same folder named in model.path."""
    given = from_weights(folder, folder / "first/model", tmp_path / "run")
    plain = started(ranks, given)
    import_folder(folder / "first/model", tmp_path / "imported")
    assert (tmp_path / "imported/latest").read_text() == "step-00000000\n"
    given["checkpoint"]["dir"] = str(tmp_path / "imported")
    after = started(ranks, given)
    assert without(after.rows, TIMES) == without(plain.rows, TIMES)
    assert f"resumed from {tmp_path}/imported/step-00000000" in after.notes
    assert not any(note.startswith("saved on ") for note in after.notes)
    step = "step-00000002"
    assert_equal_bits(tensors(tmp_path / "imported" / step), tensors(tmp_path / "run" / step))


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    assert AutoModelForCausalLM.from_pretrained(folder) is not None
    return load_file(folder / "model.safetensors")


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".safetensors"
    }


def test_an_export_is_the_model_that_the_run_wrote(folder: Path, first: Outcome, tmp_path: Path) -> None:
    """Of the live run after the last step, of the checkpoint, and the one at the end: the same bits."""
    export_checkpoint(folder / "first/step-00000006", tmp_path / "exported")
    at_end = model_of(folder / "first/model")
    assert_equal_bits(model_of(tmp_path / "exported"), at_end)
    assert_equal_bits(model_of(folder / "first/exports/step-00000006"), at_end)
    assert files_of(tmp_path / "exported") == files_of(folder / "first/model")
    assert files_of(folder / "first/exports/step-00000006") == files_of(folder / "first/model")


def cannot_export(rank: int, world_size: int, made: dict[str, Any]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "export", Mock(side_effect=RunError("no room for an export")))
        with pytest.raises(RunError) as caught:
            train(rank, world_size, made)
    return str(caught.value)


def test_what_is_exported_at_a_step_is_there_before_its_checkpoint(
    ranks: Any, folder: Path, tmp_path: Path
) -> None:
    """A run that goes on from the checkpoint of a step exports it no more."""
    sections = {"save_every": 2, "export_every": 2}
    made = config(folder, "2 TP2", tmp_path / "run", checkpoint=sections, train={"max_steps": 4})
    assert ranks(2, cannot_export, made) == ["no room for an export"] * 2
    assert list((tmp_path / "run").glob("step-*")) == []


def test_exports_are_of_their_step(folder: Path, first: Outcome) -> None:
    exports = folder / "first/exports"
    assert sorted(path.name for path in exports.iterdir()) == [
        "step-00000002",
        "step-00000004",
        "step-00000006",
    ]
    two, four = model_of(exports / "step-00000002"), model_of(exports / "step-00000004")
    assert all(not torch.equal(two[name], four[name]) for name in two)
