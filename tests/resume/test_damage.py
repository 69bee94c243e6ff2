"""Checkpoints that are not as they were written, of other models, and folders with other things in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankloom.checkpoint import find_latest, import_folder, list_checkpoints
from rankloom.checkpoint.folders import prepare_partial
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
    without,
)

LAST, BEFORE = "step-00000006", "step-00000003"
RANK_1, MANIFEST = "rank-00001.safetensors", "checkpoint.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("damage"))


def given(folder: Path, directory: Path, **sections: Any) -> dict[str, Any]:
    sections["train"] = {"max_steps": 8, **sections.get("train", {})}
    sections["schedule"] = {"decay_samples": 80, **sections.get("schedule", {})}
    return config(folder, "2 TP2", directory, **sections)


@pytest.fixture(scope="module")
def whole(rank_pool: Any, folder: Path) -> Outcome:
    """Eight steps in ``folder``/whole, saved after 3, 6 and 8."""
    return started(rank_pool.run, given(folder, folder / "whole"))


@pytest.fixture
def run(folder: Path, whole: Outcome, tmp_path: Path) -> Path:
    """The run as it was after six steps."""
    shutil.copytree(folder / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/step-00000008")
    (tmp_path / "run/latest").write_text(LAST + "\n")
    return tmp_path / "run"


def altered(file: Path, *, at: int = -100) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def removed(file: Path) -> None:
    file.unlink()


def of_another_run(file: Path) -> None:
    """The right size and content, of another step: what a copy that went wrong leaves."""
    shutil.copy(file.parents[1] / BEFORE / file.name, file)


def rewritten(file: Path) -> None:
    """A manifest that somebody edited."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "step": 5}))


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "altered": (RANK_1, altered, f"{RANK_1} was altered after writing (another sha256)"),
    "truncated": (RANK_1, truncated, f"{RANK_1} has "),
    "missing": (RANK_1, removed, f"{RANK_1} is missing"),
    "another step's": (RANK_1, of_another_run, f"{RANK_1} was altered after writing (another sha256)"),
    "side file": ("tokenizer.json", altered, "tokenizer.json was altered after writing (another sha256)"),
    "manifest": (MANIFEST, rewritten, "its content was altered: the checksum it ends with is another one's"),
    "no JSON": (MANIFEST, truncated, f"{LAST}/{MANIFEST} cannot be read: "),
    "no manifest": (MANIFEST, removed, f"{LAST} is not a complete checkpoint: it has no {MANIFEST}"),
}


@pytest.mark.parametrize(
    "damage",
    [
        name if name in ("altered", "manifest") else pytest.param(name, marks=pytest.mark.long)
        for name in DAMAGES
    ],
)
def test_auto_passes_over_what_is_damaged_and_says_so(
    ranks: Any, folder: Path, whole: Outcome, run: Path, damage: str
) -> None:
    """The run then goes on from the one before, to the same end; the damaged one is replaced."""
    file, spoil, words = DAMAGES[damage]
    spoil(run / LAST / file)
    after = started(ranks, given(folder, run))
    (warning,) = [note for note in after.notes if note.startswith("warning: ")]
    assert words in warning
    assert f"{run}/{LAST}" in warning
    assert warning.endswith("; it is passed over")
    assert f"resumed from {run}/{BEFORE}" in after.notes
    assert sorted(after.samples) == [4, 5, 6, 7, 8]
    assert without(metrics(run), TIMES) == without(metrics(folder / "whole"), TIMES)
    for step in (LAST, "step-00000008"):
        assert_equal_bits(tensors(run / step), tensors(folder / "whole" / step))


@pytest.mark.parametrize(
    "damage",
    [name if name == "altered" else pytest.param(name, marks=pytest.mark.long) for name in DAMAGES],
)
def test_a_damaged_one_that_was_named_is_refused(ranks: Any, folder: Path, run: Path, damage: str) -> None:
    file, spoil, words = DAMAGES[damage]
    spoil(run / LAST / file)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    said = refused(ranks, given(folder, run, checkpoint={"resume": str(run / LAST)}))
    assert words in said
    assert f"{run}/{LAST}" in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_where_none_is_whole_the_run_is_refused(ranks: Any, folder: Path, run: Path) -> None:
    """Nothing starts anew on its own; each of them is named once."""
    altered(run / LAST / RANK_1)
    truncated(run / BEFORE / "rank-00000.safetensors")
    said = refused(ranks, given(folder, run))
    assert said.startswith(f"no checkpoint in {run} is whole: ")
    assert said.count(RANK_1) == 1
    assert "To start anew, set checkpoint.resume to never (checkpoint section" in said
    assert "warning" not in said
    truncated(run / LAST / RANK_1)
    said = refused(ranks, given(folder, run))
    assert said.startswith(f"no checkpoint in {run} is complete: ")
    assert said.count(f"{LAST} is damaged") == said.count(f"{BEFORE} is damaged") == 1


@pytest.mark.long
def test_behind_a_damaged_one_is_an_imported_one(ranks: Any, folder: Path, whole: Outcome, run: Path) -> None:
    """Of step 0, without moments: nothing that was read of the damaged one stays."""
    import_folder(folder / "whole/model", run.parent / "plain")
    shutil.copytree(run.parent / "plain/step-00000000", run / "step-00000000")
    expected = started(ranks, given(folder, run.parent / "plain"))
    shutil.rmtree(run / BEFORE)
    altered(run / LAST / RANK_1)
    after = started(ranks, given(folder, run))
    assert f"resumed from {run}/step-00000000" in after.notes
    assert without(after.rows, TIMES) == without(expected.rows, TIMES)


def test_other_things_in_the_folder_do_not_matter(ranks: Any, folder: Path, run: Path) -> None:
    """A pointer to nothing, files and links with such names, what killed saves and removals left."""
    (run / "latest").write_text("step-00000099\n")
    (run / "step-00000009").write_text("a file")
    (run / "step-00000007").symlink_to(run / BEFORE)
    (run / "step-12").mkdir()
    (run / "notes.txt").write_text("mine")
    prepare_partial(run / "step-00000008")
    (run / "step-00000002.removed").mkdir()
    (run / "latest.tmp").write_text("step")
    after = started(ranks, given(folder, run))
    assert f"resumed from {run}/{LAST}" in after.notes
    (warning,) = [note for note in after.notes if note.startswith("warning: ")]
    assert (
        warning
        == f"warning: {run}/step-12 is not a complete checkpoint: it has no {MANIFEST}; it is passed over"
    )
    assert [found.step for found in list_checkpoints(run) if found.complete] == [3, 6, 8]
    assert not any(found.leftover for found in list_checkpoints(run))
    assert (run / "step-00000009").read_text() == "a file"
    assert (run / "notes.txt").read_text() == "mine"
    assert find_latest(run) == run / "step-00000008"


CHANGED_MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden_size": ({"intermediate_size": 96}, "model.config.intermediate_size was 64, now it is 96"),
    "layers": ({"num_hidden_layers": 3}, "model.config.num_hidden_layers was 2, now it is 3"),
    "tied": ({"tie_word_embeddings": True}, "model.config.tie_word_embeddings was False, now it is True"),
    "rope": ({"rope_theta": 500.0}, "model.config.rope_parameters was "),
    "vocabulary": ({"vocab_size": 270}, "model.config.vocab_size was 269, now it is 270"),
    "family": (FAMILIES["qwen3"], "model.config.model_type was llama, now it is qwen3"),
}


@pytest.mark.parametrize(
    "change", [n if n == "layers" else pytest.param(n, marks=pytest.mark.long) for n in CHANGED_MODELS]
)
def test_another_model_is_refused_with_both_values(ranks: Any, folder: Path, run: Path, change: str) -> None:
    settings, words = CHANGED_MODELS[change]
    made = given(folder, run)
    made["model"]["config"] = {**made["model"]["config"], **settings}
    said = refused(ranks, made)
    assert said.startswith(f"the checkpoint {run}/{LAST} was saved with another model: model.config.")
    assert words in said
    remedy = (
        "name these settings in checkpoint.allow_changes"
        if change == "rope"
        else "begin a new run in another checkpoint.dir: its weights do not fit"
    )
    assert f"Set it back, or {remedy} (model section" in said


def test_another_shape_cannot_be_allowed(ranks: Any, folder: Path, run: Path) -> None:
    made = given(folder, run, checkpoint={"allow_changes": ["model.config.*"]})
    made["model"]["config"] = {**made["model"]["config"], "intermediate_size": 96}
    said = refused(ranks, made)
    assert "does not fit the model" in said
    assert "mlp.up_proj.weight is [64, 32], the model says [96, 32]" in said


def test_another_dtype_is_said(ranks: Any, folder: Path, whole: Outcome, run: Path) -> None:
    after = started(ranks, given(folder, run, model={"dtype": "bfloat16"}))
    assert "weights were saved in float32 and are kept in torch.bfloat16 now" in after.notes
    for mine, theirs in zip(after.rows, whole.rows[6:], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-2)


def test_another_tokenizer_is_refused(ranks: Any, folder: Path, tmp_path: Path, whole: Outcome) -> None:
    """The same records and settings; the template adds a space to each turn."""
    model = tmp_path / "model"
    shutil.copytree(folder / "whole/model", model)
    made = given(folder, tmp_path / "run", train={"max_steps": 3})
    made["model"] = {"path": str(model)}
    started(ranks, made)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("message['content']", "' ' + message['content']"))
    said = refused(ranks, made)
    assert ") of another content, tokenizer or template. Set it back" in said


def test_a_path_into_another_folder(
    ranks: Any, folder: Path, whole: Outcome, run: Path, tmp_path: Path
) -> None:
    """Also the folder of checkpoints: its latest. What was resumed from stays as it is."""
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for path in (run / LAST, run):
        other = tmp_path / f"other-{path.name}"
        after = started(ranks, given(folder, other, checkpoint={"resume": str(path)}))
        assert f"resumed from {run}/{LAST}" in after.notes
        assert without(metrics(other), TIMES) == without(whole.rows[6:], TIMES)
        last = "step-00000008"
        assert_equal_bits(tensors(other / last), tensors(folder / "whole" / last))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_back_to_an_earlier_step(ranks: Any, folder: Path, whole: Outcome, run: Path) -> None:
    """Later checkpoints stay until those of this run take their place."""
    made = given(folder, run, optimizer={"lr": 1e-3}, checkpoint={"resume": str(run / BEFORE), "keep": 2})
    after = started(ranks, {**made, "train": {**made["train"], "max_steps": 4}})
    assert (
        f"{run} holds checkpoints of later steps than {BEFORE}: {LAST}; they stay until those of this run "
        "take their place"
    ) in after.notes
    assert "changed: optimizer.lr was 0.003, now it is 0.001" in after.notes
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4]
    assert find_latest(run) == run / "step-00000004"
    made["checkpoint"]["resume"] = "auto"
    again = started(ranks, made)
    assert f"resumed from {run}/step-00000004" in again.notes
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [found.step for found in list_checkpoints(run)] == [6, 8]
    assert again.rows[1]["loss"] != whole.rows[5]["loss"]


def test_never_begins_anew_over_what_is_there(ranks: Any, folder: Path, whole: Outcome, run: Path) -> None:
    made = given(folder, run, checkpoint={"resume": "never", "keep": 2}, train={"max_steps": 4})
    after = started(ranks, made)
    assert (
        f"{run} holds checkpoints of an earlier run, the latest {LAST}; this run starts anew, as "
        "checkpoint.resume is never, and its checkpoints take their place"
    ) in after.notes
    assert [row["loss"] for row in metrics(run)] == [row["loss"] for row in whole.rows[:4]]
    assert find_latest(run) == run / "step-00000004"
    assert [found.step for found in list_checkpoints(run)] == [3, 4]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "run/model",
            "holds no complete checkpoint; it is a model folder: to start a new run from its weights, set "
            "model.path",
        ),
        ("run/logs", "holds no complete checkpoint"),
    ],
)
def test_a_path_that_is_no_checkpoint(ranks: Any, folder: Path, run: Path, path: str, words: str) -> None:
    (run / "logs").mkdir()
    said = refused(ranks, given(folder, run, checkpoint={"resume": str(run.parent / path)}))
    assert said.startswith(f"checkpoint.resume: {run.parent / path} {words} (")
