"""What is refused when a checkpoint is loaded, by name and on every rank; and that nothing is unpickled."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankloom.checkpoint import CheckpointParameters, load
from rankloom.checkpoint.snapshot import rank_file
from rankloom.errors import RankloomError
from rankloom.models import fill, logical_parameters
from tests.checkpoint.runs import LAYOUTS, W, recipe, save_and_go_on, started, whole_tensors
from tests.checkpoint.small import rewrite_manifest
from tests.runtime.models import Recipe

R = recipe("qwen3", num_steps=1)


@pytest.fixture(scope="module")
def original(rank_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after one step of a tied model on 4 ranks."""
    directory = tmp_path_factory.mktemp("original")
    world, settings = LAYOUTS["4 TP2 W4"]
    rank_pool.run(world, save_and_go_on, settings, R, directory, 1, timeout_s=120)
    return directory / "step-00000001"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / original.name)


def error_of(rank: int, world_size: int, r: Recipe, folder: Path) -> str:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    try:
        load(model, optimizer, folder)
    except RankloomError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(ranks: Any, folder: Path, r: Recipe = R) -> str:
    """The error, which must be the same on both ranks."""
    errors = ranks(2, error_of, r, folder)
    assert errors[0] == errors[1]
    return str(errors[0])


def without(name: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        del content["tensors"][name]

    return change


def test_a_missing_moment_is_an_error_with_its_name(ranks: Any, folder: Path) -> None:
    name = "exp_avg_sq/model.layers.1.mlp.up_proj.weight"
    rewrite_manifest(folder, without(name))
    assert refused(ranks, folder) == (
        f"UserError: the checkpoint {folder} does not fit the model: 1 missing: {name}"
    )


def test_missing_moments_of_all_are_no_fresh_start(ranks: Any, folder: Path) -> None:
    def change(content: Any) -> None:
        content["tensors"] = {n: t for n, t in content["tensors"].items() if n.startswith("weight/")}

    rewrite_manifest(folder, change)
    assert "48 missing: exp_avg/model.embed_tokens.weight, exp_avg/model.layers.0" in refused(ranks, folder)


def test_an_unexpected_name_and_another_shape_are_listed(ranks: Any, folder: Path) -> None:
    def change(content: Any) -> None:
        tensors = content["tensors"]
        tensors["weight/model.layers.1.mlp.up.weight"] = tensors.pop(
            "weight/model.layers.1.mlp.up_proj.weight"
        )
        tensors["exp_avg/model.norm.weight"]["shape"] = [2, 16]

    rewrite_manifest(folder, change)
    assert refused(ranks, folder) == (
        f"UserError: the checkpoint {folder} does not fit the model: "
        "1 missing: weight/model.layers.1.mlp.up_proj.weight; "
        "1 unexpected: weight/model.layers.1.mlp.up.weight; "
        "1 of another shape: exp_avg/model.norm.weight is [2, 16], the model says [32]"
    )


def test_an_untied_model_misses_its_head(ranks: Any, folder: Path) -> None:
    text = refused(ranks, folder, recipe("llama", num_steps=1))
    assert "3 missing: weight/lm_head.weight, exp_avg/lm_head.weight, exp_avg_sq/lm_head.weight;" in text
    assert "12 unexpected: " in text  # the norms of Qwen3's heads
    assert "/model.layers.1.self_attn.k_norm.weight" in text


def test_boxes_that_leave_a_hole_are_refused(ranks: Any, folder: Path) -> None:
    def change(content: Any) -> None:
        content["tensors"]["exp_avg/model.embed_tokens.weight"]["boxes"].pop()

    rewrite_manifest(folder, change)
    assert refused(ranks, folder).startswith(
        f"DamagedCheckpoint: the checkpoint {folder} is damaged: its boxes hold "
    )
    assert " of the 3,232 elements of exp_avg/model.embed_tokens.weight" in refused(ranks, folder)


def test_a_truncated_file_is_named(ranks: Any, folder: Path) -> None:
    file = folder / rank_file(2)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-8])
    problem = f"{file.name} has {size - 8:,} bytes instead of {size:,}"
    assert refused(ranks, folder) == f"DamagedCheckpoint: the checkpoint {folder} is damaged: {problem}"


@pytest.mark.parametrize("place", ["values", "header"])
def test_an_altered_file_is_named_by_all_ranks(ranks: Any, folder: Path, place: str) -> None:
    """The values by their checksum; a header that cannot be read at once."""
    file = folder / rank_file(3)
    content = bytearray(file.read_bytes())
    content[-100 if place == "values" else 20] ^= 0x55
    file.write_bytes(content)
    text = refused(ranks, folder)
    assert file.name in text
    if place == "values":
        message = (
            f"the checkpoint {folder} is damaged: {file.name} was altered after writing (another sha256)"
        )
        assert text == f"DamagedCheckpoint: rank 1: {message}"


def test_an_altered_config_is_named(ranks: Any, folder: Path) -> None:
    content = bytearray((folder / "config.json").read_bytes())
    content[10] ^= 1
    (folder / "config.json").write_bytes(content)
    assert "config.json was altered after writing" in refused(ranks, folder)


def test_a_folder_that_is_no_checkpoint(ranks: Any, tmp_path: Path) -> None:
    text = f"UserError: {tmp_path} is not a complete checkpoint: it has no checkpoint.json"
    assert refused(ranks, tmp_path) == text


def load_without_pickle(rank: int, world_size: int, folder: Path) -> int:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was unpickled")

    model, optimizer = started(rank, world_size, {W: 2}, R)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(pickle, name, forbidden)
        monkeypatch.setattr(torch, "load", forbidden)
        return load(model, optimizer, folder).step


def test_loading_unpickles_nothing(ranks: Any, folder: Path) -> None:
    assert ranks(2, load_without_pickle, folder) == [1, 1]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def weights_alone(rank: int, world_size: int, folder: Path) -> Any:
    """A new run from the weights of a checkpoint, against the weights of the whole load."""
    model, optimizer = started(rank, world_size, {W: 2}, R)
    load(model, optimizer, folder)
    whole = whole_tensors(model, optimizer)
    fresh, _ = started(rank, world_size, {W: 2}, R)
    fill(fresh, CheckpointParameters(folder))
    return all(torch.equal(whole[f"weight/{n}"], value) for n, value in logical_parameters(fresh))


def test_a_new_run_may_start_from_the_weights_alone(ranks: Any, folder: Path) -> None:
    assert ranks(2, weights_alone, folder) == [True, True]


def step_zero(rank: int, world_size: int, directory: Path) -> Any:
    """A save before the first step, loaded after one: moments are gone, and the next step is the first."""
    from rankloom.checkpoint import save
    from tests.checkpoint.runs import take

    model, optimizer = started(rank, world_size, {W: 2}, R)
    save(model, optimizer, directory, step=0, state={})
    first = take(model, optimizer, R, 0, 1)
    tensors = whole_tensors(model, optimizer)
    load(model, optimizer, directory / "step-00000000")
    assert optimizer.num_updates == 0
    assert not optimizer.adamw.state
    assert take(model, optimizer, R, 0, 1) == first
    return all(torch.equal(t, tensors[n]) for n, t in whole_tensors(model, optimizer).items())


def test_a_checkpoint_of_step_zero_starts_anew(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, step_zero, tmp_path) == [True, True]
