"""Checkpoints out to Hugging Face folders and in again, compared with plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from rankloom.checkpoint import exporting, find_latest, importing, load, read_manifest, save, verify
from rankloom.checkpoint.exporting import export_checkpoint, row_boxes
from rankloom.checkpoint.importing import import_folder
from rankloom.checkpoint.reading import CheckpointReader
from rankloom.errors import RunError, UserError
from rankloom.models import logical_parameters
from rankloom.plan import ModelSpec
from tests.checkpoint.runs import LAYOUTS, LENGTH, TP, W, recipe, started, take, whole_tensors
from tests.checkpoint.small import hf_logits, hf_model, logits, write_checkpoint
from tests.parity.own_tokenizer import write_tokenizer
from tests.runtime.models import FAMILIES, tensor_rows
from tests.weights.memory import LiveBytes

CUT = {TP: 2, W: 4}


def train_and_save(
    rank: int, world_size: int, settings: Any, r: Any, directory: Path, equal: bool, tokenizer: Path | None
) -> Any:
    """All tensors after a step; with ``equal``, the head has the values of the table."""
    model, optimizer = started(rank, world_size, settings, r)
    take(model, optimizer, r, 0, 1)
    if equal:
        pieces = {piece.unit.name: piece for piece in optimizer.pieces}
        pieces["lm_head"].master.copy_(pieces["model.embed_tokens"].master)
        optimizer.publish()
    own = AutoTokenizer.from_pretrained(tokenizer) if tokenizer and rank == 0 else None
    save(model, optimizer, directory, step=1, state={}, tokenizer=own)
    tensors = whole_tensors(model, optimizer)
    return tensors if rank == 0 else None


def trained(ranks: Any, r: Any, directory: Path, **kwargs: Any) -> Any:
    arguments = (CUT, r, directory, kwargs.get("equal", False), kwargs.get("tokenizer"))
    return ranks(4, train_and_save, *arguments, timeout_s=120)[0]


def reference(family: str, tensors: Any) -> Any:
    """Plain transformers with these weights."""
    model = hf_model(family)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in tensors.items():
            if name.startswith("weight/"):
                parameters[name.removeprefix("weight/")].copy_(value)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_the_logits_of_plain_transformers(ranks: Any, tmp_path: Path, family: str) -> None:
    tensors = trained(ranks, recipe(family, num_steps=1), tmp_path / "run")
    assert export_checkpoint(tmp_path / "run", tmp_path / "out") == tmp_path / "run" / "step-00000001"
    found, model = hf_logits(tmp_path / "out")
    torch.testing.assert_close(found, logits(reference(family, tensors)), rtol=0, atol=1e-6)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    spec = ModelSpec.from_config(FAMILIES[family])
    assert {name: tuple(t.shape) for name, t in exported.items()} == {
        p.name: p.shape for p in spec.parameters
    }
    assert all(torch.equal(t, tensors[f"weight/{name}"]) for name, t in exported.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == 101
    assert config["architectures"] == [type(model).__name__]
    again = import_folder(tmp_path / "out", tmp_path / "again")
    reader = CheckpointReader(again)
    for name, tensor in exported.items():
        out = torch.empty_like(tensor)
        reader.read(f"weight/{name}", next(row_boxes(tuple(tensor.shape), 4)), out)
        assert torch.equal(out, tensor)


def test_a_tied_pair_of_101_rows_is_one_tensor(ranks: Any, tmp_path: Path) -> None:
    trained(ranks, recipe("qwen3", num_steps=1), tmp_path / "run")
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported["model.embed_tokens.weight"].shape == (101, 32)
    assert "lm_head.weight" not in exported
    _, model = hf_logits(tmp_path / "out")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.lm_head.weight.shape == (101, 32)


def test_an_untied_pair_of_equal_values_is_two_tensors(ranks: Any, tmp_path: Path) -> None:
    trained(ranks, recipe("llama", num_steps=1), tmp_path / "run", equal=True)
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(exported["lm_head.weight"], exported["model.embed_tokens.weight"])
    _, model = hf_logits(tmp_path / "out")
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_dtypes_shards_and_the_tokenizer(ranks: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer", ["some text to train on"] * 3, vocab_size=300)
    r = recipe("llama", num_steps=1, dtype="bfloat16")
    tensors = trained(ranks, r, tmp_path / "run", tokenizer=tmp_path / "tokenizer")
    export_checkpoint(tmp_path / "run", tmp_path / "stored", shard_bytes=20_000)
    export_checkpoint(tmp_path / "run", tmp_path / "exact", dtype=torch.float32)
    index = json.loads((tmp_path / "stored" / "model.safetensors.index.json").read_text())
    spec = ModelSpec.from_config(FAMILIES["llama"])
    assert index["metadata"]["total_size"] == 2 * spec.num_parameters
    files = sorted(path.name for path in (tmp_path / "stored").glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) == 3
    assert set(index["weight_map"].values()) == set(files)
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "stored" / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), tensors[f"weight/{name}"])
    exact = load_file(tmp_path / "exact" / "model.safetensors")
    assert all(torch.equal(t, tensors[f"master/{name}"]) for name, t in exact.items())
    dtypes = [json.loads((tmp_path / n / "config.json").read_text())["dtype"] for n in ("stored", "exact")]
    assert dtypes == ["bfloat16", "float32"]
    chat = [{"role": "user", "content": "some text"}]
    genuine = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    copy = AutoTokenizer.from_pretrained(tmp_path / "stored")
    assert copy.apply_chat_template(chat) == genuine.apply_chat_template(chat)
    assert copy.chat_template == genuine.chat_template
    assert hf_logits(tmp_path / "stored")[1].dtype is torch.bfloat16


def test_memory_of_an_export_is_a_few_rows(
    ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(ranks, recipe("llama", num_steps=1), tmp_path / "run")
    chunk, largest, model = 2048, 101 * 32 * 4, 4 * ModelSpec.from_config(FAMILIES["llama"]).num_parameters
    assert 6 * chunk < largest < model / 5
    monkeypatch.setattr(exporting, "CHUNK_BYTES", chunk)
    with LiveBytes() as live:
        export_checkpoint(tmp_path / "run", tmp_path / "out")
    assert 0 < live.peak <= 6 * chunk
    written: list[int] = []
    genuine = importing.write_stream

    def watched(path: Path, buffers: Any) -> int:
        return genuine(path, (written.append(len(b)) or b for b in buffers))

    monkeypatch.setattr(importing, "write_stream", watched)
    import_folder(tmp_path / "out", tmp_path / "back")
    assert max(written[1:]) == chunk  # the first is the header; slices of a file are views of it


def imported_losses(rank: int, world_size: int, settings: Any, r: Any, directory: Path) -> Any:
    model, optimizer = started(rank, world_size, settings, r)
    loaded = load(model, optimizer, find_latest(directory) or "")
    losses = [model.evaluate(tensor_rows([row], LENGTH))[0].item() for row in r.steps[0]]
    losses = [
        model.comm["context"].sum_small(torch.tensor([loss]).double(), "test").item() for loss in losses
    ]
    return losses, loaded.notes, {n: v.clone() for n, v in logical_parameters(model)}


def hf_losses(model: Any, r: Any) -> list[float]:
    losses = []
    for row in r.steps[0]:
        total = 0.0
        for document in row:
            ids = torch.tensor(document.ids)
            targets = ids[1:].masked_fill(~torch.tensor(document.trained[1:]), -100)
            with torch.no_grad():
                out = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(out, targets, reduction="sum").item()
        losses.append(total)
    return losses


@pytest.mark.parametrize("family", FAMILIES)
def test_an_import_has_the_loss_of_plain_transformers(ranks: Any, tmp_path: Path, family: str) -> None:
    genuine = hf_model(family)
    genuine.save_pretrained(tmp_path / "hf", max_shard_size="40KB")
    r = recipe(family, num_steps=1)
    folder = import_folder(tmp_path / "hf", tmp_path / "run")
    assert folder == tmp_path / "run" / "step-00000000"
    manifest = verify(folder)
    assert (manifest.step, manifest.num_updates, manifest.state) == (0, 0, {})
    world, settings = LAYOUTS["4 TP2 W4"]
    losses, notes, parameters = ranks(world, imported_losses, settings, r, tmp_path / "run")[0]
    assert losses == pytest.approx(hf_losses(genuine, r), rel=1e-6)
    assert notes == (
        "random states: the checkpoint holds none; every rank starts a new stream from seed 0, step 0 and "
        "its rank",
    )
    named = dict(genuine.named_parameters())
    assert all(torch.equal(value, named[name]) for name, value in parameters.items())
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    torch.testing.assert_close(hf_logits(tmp_path / "back")[0], logits(genuine), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_import_keeps_the_dtype_of_the_folder(tmp_path: Path, dtype: torch.dtype) -> None:
    hf_model("qwen2", dtype=dtype).save_pretrained(tmp_path / "hf")
    folder = import_folder(tmp_path / "hf", tmp_path / "run")
    assert read_manifest(folder).model.dtype == str(dtype).removeprefix("torch.")
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("hf", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_import_of_several_files_and_of_mixed_dtypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_FILE_BYTES", 30_000)
    hf_model("qwen2").save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    mixed = {name: t.bfloat16() if t.ndim == 2 else t for name, t in load_file(file).items()}
    save_file(mixed, file, metadata={"format": "pt"})
    folder = import_folder(tmp_path / "hf", tmp_path / "run")
    assert len(list(folder.glob("weights-*.safetensors"))) == 2
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(t, back[name]) and t.dtype is back[name].dtype for name, t in mixed.items())


def test_an_import_with_one_key_renamed_lists_one_missing_and_one_unexpected(tmp_path: Path) -> None:
    hf_model("qwen3").save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, file)
    with pytest.raises(UserError) as caught:
        import_folder(tmp_path / "hf", tmp_path / "run")
    assert str(caught.value) == (
        f"the weights in {tmp_path / 'hf'} do not fit its config.json: 1 missing: "
        "model.layers.1.mlp.up_proj.weight; 1 unexpected: model.layers.1.mlp.up.weight"
    )
    assert not (tmp_path / "run").exists()


def test_what_an_import_refuses(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        import_folder(tmp_path / "hf", tmp_path / "run")
    hf_model("qwen3").save_pretrained(tmp_path / "hf")
    write_checkpoint(tmp_path / "run", 10)
    with pytest.raises(
        UserError, match=r"run holds checkpoints already, the latest is step-00000010; name another"
    ):
        import_folder(tmp_path / "hf", tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/step-00000000 cannot be written: Not a directory"):
        import_folder(tmp_path / "hf", tmp_path / "file")


def test_what_an_export_refuses(tmp_path: Path) -> None:
    hf_model("qwen3").save_pretrained(tmp_path / "hf")
    folder = import_folder(tmp_path / "hf", tmp_path / "run")
    with pytest.raises(
        UserError, match=r"hf was not written by rankloom .* move it away, or name another folder"
    ):
        export_checkpoint(folder, tmp_path / "hf")
    export_checkpoint(folder, tmp_path / "out")
    export_checkpoint(folder, tmp_path / "out")  # over what is there
    file = folder / "weights-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"weights-00000\.safetensors was altered after writing"):
        export_checkpoint(folder, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out", "run"]
