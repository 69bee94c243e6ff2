"""Small checkpoints made without ranks: a model folder of random weights, or a folder of one file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rankloom.checkpoint.files import replace_text, write_file
from rankloom.checkpoint.folders import checkpoint_folder, prepare_partial, publish
from rankloom.checkpoint.manifest import MANIFEST, LayoutFacts, Manifest, ModelFacts, StoredBox, StoredTensor
from rankloom.layout import GTPParallelLayout
from rankloom.plan import Box
from tests.runtime.models import FAMILIES

LAYOUT = GTPParallelLayout.resolve(
    world_size=8, tensor_model_parallel_size=2, tensor_parallel_num_weight_shards=4, context_parallel_size=2
)


def write_checkpoint(directory: Path, step: int, *, saved_at: float | None = None) -> Path:
    """A complete checkpoint as far as its folder goes: of one tensor, in a file of 100 bytes."""
    folder = checkpoint_folder(directory, step)
    partial = prepare_partial(folder)
    facts = write_file(partial / "rank-00000.safetensors", [bytes([step % 256]) * 100])
    box = StoredBox(Box((0,), (5,)), "rank-00000.safetensors", "weight/model.norm.weight[0:5]")
    manifest = Manifest(
        step=step,
        layout=LayoutFacts.of(LAYOUT),
        model=ModelFacts({**FAMILIES["qwen3"]}, "float32", tied=True),
        num_updates=step,
        state={"consumed_samples": 1000 * step},
        config=None,
        files={"rank-00000.safetensors": facts},
        tensors={"weight/model.norm.weight": StoredTensor((5,), "float32", (box,))},
        rankloom_version="0",
        saved_at=float(step) if saved_at is None else saved_at,
    )
    replace_text(partial / MANIFEST, manifest.to_json())
    publish(folder)
    return folder


def rewrite_manifest(folder: Path, change: Any) -> None:
    """Alters checkpoint.json as a program would that seals it again."""
    file = folder / MANIFEST
    manifest = Manifest.from_json(file.read_text())
    content = json.loads(file.read_text())
    change(content)
    content["sha256"] = ""
    altered = {name: value for name, value in content.items() if name != "sha256"}
    from rankloom.checkpoint import manifest as module

    file.write_text(json.dumps({**altered, "sha256": module._checksum(module._canonical(altered))}))
    assert json.loads(file.read_text())["step"] == manifest.step


def hf_model(family: str, *, seed: int = 3, dtype: torch.dtype = torch.float32) -> Any:
    """A plain transformers model in which norms and biases have been trained."""
    config = copy.deepcopy(FAMILIES[family])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config), attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
            else:
                parameter *= 4
    return model.to(dtype).eval()


def logits(model: Any) -> torch.Tensor:
    """fp32 [2, 24, vocab] of fixed ids."""
    ids = torch.randint(0, 101, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        value: torch.Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return value


def hf_logits(folder: Path) -> tuple[torch.Tensor, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return logits(model), model
