"""Out to a Hugging Face folder and in again: logical shapes, each tensor once, names strict both ways."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from rankloom.models import SafetensorsFolder, ShardedModel, export, fill, logical_parameters
from rankloom.plan import ModelSpec
from rankloom.plan.exported import mark_exported
from tests.runtime.models import FAMILIES, Recipe, random_rows, tensor_rows
from tests.runtime.sharded import build, step

TP, W = "tensor_model_parallel_size", "tensor_parallel_num_weight_shards"
LENGTH = 16


def recipe(family: str, **changes: Any) -> Recipe:
    return Recipe(
        family=family, steps=(tuple(random_rows(4, length=LENGTH, seed=5)),), length=LENGTH, **changes
    )


def losses_of(model: ShardedModel, r: Recipe) -> list[float]:
    """The loss sum of each row."""
    return [model.evaluate(tensor_rows([row], LENGTH))[0].item() for row in r.steps[0]]


def trained_and_exported(
    rank: int, world_size: int, settings: dict[str, Any], r: Recipe, folder: Path, max_file_bytes: int
) -> tuple[dict[str, Tensor], list[float]]:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, optimizer = build(layout, r, rank)
    step(model, optimizer, r.steps[0], r)
    if r.family == "llama":  # equal values, and yet two parameters
        head, table = (unit for unit in model.units if unit.name in ("lm_head", "model.embed_tokens"))
        head.settle()
        table.settle()
        head.stored.copy_(table.stored)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys.modules["rankloom.models.export"], "MAX_FILE_BYTES", max_file_bytes)
        export(model, folder)
        export(model, folder)  # over what is there
    return {name: value.clone() for name, value in logical_parameters(model)}, losses_of(model, r)


def imported(
    rank: int, world_size: int, settings: dict[str, Any], r: Recipe, folder: Path
) -> tuple[dict[str, Tensor], list[float]]:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    model, _ = build(layout, r, rank)
    fill(
        model,
        SafetensorsFolder(folder, ModelSpec.from_config(json.loads((folder / "config.json").read_text()))),
    )
    return {name: value.clone() for name, value in logical_parameters(model)}, losses_of(model, r)


def hf_losses(folder: Path, r: Recipe) -> tuple[list[float], Any]:
    """The loss sum of each row with the exported folder in plain transformers, a document at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    losses = []
    for row in r.steps[0]:
        total = 0.0
        for document in row:
            ids = torch.tensor(document.ids)
            targets = ids[1:].masked_fill(~torch.tensor(document.trained[1:]), -100)
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(
                logits, targets, ignore_index=-100, reduction="sum"
            ).item()
        losses.append(total)
    return losses, model


@pytest.mark.parametrize("family", ["qwen3", "llama_biases_tied"])
@pytest.mark.parametrize("settings", [{TP: 2, W: 4}, {W: 4}], ids=str)
def test_a_tied_model_of_odd_vocabulary_comes_back_the_same(
    ranks: Any, tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    r, folder = recipe(family), tmp_path / "model"
    parameters, losses = ranks(4, trained_and_exported, settings, r, folder, 10**9)[0]
    tensors = load_file(folder / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape == (101, 32)
    assert "lm_head.weight" not in tensors
    assert tensors.keys() == {p.name for p in ModelSpec.from_config(FAMILIES[family]).parameters}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, parameters[name]), name
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (101, True)
    again, model = hf_losses(folder, r)
    assert again == pytest.approx(losses, rel=1e-6)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    for other in ({W: 2}, {TP: 2, W: 4}):
        back, back_losses = ranks(4, imported, other, r, folder)[0]
        assert back_losses == pytest.approx(losses, rel=1e-6)
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_untied_weights_of_equal_values_are_two_tensors(ranks: Any, tmp_path: Path) -> None:
    r, folder = recipe("llama"), tmp_path / "model"
    _, losses = ranks(4, trained_and_exported, {TP: 2, W: 4}, r, folder, 10**9)[0]
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert tensors["lm_head.weight"].shape == (101, 32)
    again, model = hf_losses(folder, r)
    assert again == pytest.approx(losses, rel=1e-6)
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_a_large_model_is_written_in_several_files(ranks: Any, tmp_path: Path) -> None:
    r, folder = recipe("qwen3", dtype="bfloat16"), tmp_path / "model"
    parameters, losses = ranks(2, trained_and_exported, {W: 2}, r, folder, 10_000)[0]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert set(index["weight_map"].values()) == set(files)
    assert index["weight_map"].keys() == parameters.keys()
    assert index["metadata"]["total_size"] == sum(t.numel() * 2 for t in parameters.values())
    back, back_losses = ranks(2, imported, {TP: 2}, r, folder)[0]
    assert all(torch.equal(back[name], value) for name, value in parameters.items())
    assert back_losses == pytest.approx(losses, rel=2e-2)
    _, model = hf_losses(folder, r)
    assert model.dtype is torch.bfloat16
    assert not list(tmp_path.glob("model.*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder of right names and shapes."""
    spec = ModelSpec.from_config(FAMILIES["qwen3"])
    save_file({p.name: torch.zeros(p.shape) for p in spec.parameters}, tmp_path / "model.safetensors")
    return tmp_path


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_renamed_key_is_one_missing_and_one_unexpected(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(folder, lambda t: t.update({"model.layers.1.mlp.up.weight": t.pop(name)}))
    with pytest.raises(UserError) as caught:
        SafetensorsFolder(folder, ModelSpec.from_config(FAMILIES["qwen3"]))
    assert f"1 missing: {name}" in str(caught.value)
    assert "1 unexpected: model.layers.1.mlp.up.weight" in str(caught.value)


def test_a_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.embed_tokens.weight": torch.zeros(104, 32)}))
    with pytest.raises(UserError, match=r"embed_tokens.weight is \[104, 32\], config says \[101, 32\]"):
        SafetensorsFolder(folder, ModelSpec.from_config(FAMILIES["qwen3"]))


def test_a_tied_head_in_the_file_is_no_surprise_and_an_untied_one_is_needed(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"lm_head.weight": torch.zeros(101, 32)}))
    SafetensorsFolder(folder, ModelSpec.from_config(FAMILIES["qwen3"]))
    rewrite(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(UserError, match=r"1 missing: lm_head\.weight"):
        SafetensorsFolder(folder, ModelSpec.from_config({**FAMILIES["qwen3"], "tie_word_embeddings": False}))


def test_a_broken_or_missing_file_is_named(folder: Path) -> None:
    spec = ModelSpec.from_config(FAMILIES["qwen3"])
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(UserError, match=r"model.safetensors cannot be read as safetensors"):
        SafetensorsFolder(folder, spec)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no \*.safetensors files in"):
        SafetensorsFolder(folder, spec)
    for broken in ("{", "[1]", '{"metadata": {}}', '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'):
        (folder / "model.safetensors.index.json").write_text(broken)
        with pytest.raises(UserError, match=r"model\.safetensors\.index\.json (cannot be read|must hold)"):
            SafetensorsFolder(folder, spec)
    index = {"weight_map": {p.name: "model-00001-of-00001.safetensors" for p in spec.parameters}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model-00001-of-00001.safetensors is named by the index"):
        SafetensorsFolder(folder, spec)


def test_a_foreign_folder_is_not_replaced_and_the_new_model_stays(tmp_path: Path) -> None:
    module = sys.modules["rankloom.models.export"]
    folder, new = tmp_path / "model", tmp_path / "model.partial"
    for path in (folder, new):
        path.mkdir()
        (path / "file").write_text(path.name)
    with pytest.raises(UserError, match=r"model was not written by .* it is in .*model\.partial"):
        module.replace_folder(folder)
    assert (folder / "file").read_text() == "model"
    assert (new / "file").read_text() == "model.partial"
    mark_exported(folder, GTPParallelLayout.resolve(world_size=2), version="1")
    module.replace_folder(folder)
    assert (folder / "file").read_text() == "model.partial"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_names_the_folder_and_leaves_no_part(tmp_path: Path) -> None:
    module = sys.modules["rankloom.models.export"]
    (tmp_path / "model.partial").mkdir()
    for error in (OSError(28, "No space left on device"), SafetensorError("No space left on device")):
        with pytest.raises(RunError, match=r"model cannot be written: No space left on device$"):  # noqa: SIM117
            with module.removed_unless_whole(tmp_path / "model"):
                raise error
    assert list(tmp_path.iterdir()) == []
