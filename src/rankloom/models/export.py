"""Writes the trained model as a Hugging Face folder: logical shapes, no padding, tied weights once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rankloom import __version__
from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from rankloom.models.sharded import ShardedModel
from rankloom.plan import Placement
from rankloom.plan.exported import folders_of_export, mark_exported, refuse_foreign_folders
from rankloom.weights import SmallUnit, WeightUnit

__all__ = ["export", "logical_parameters", "removed_unless_whole", "replace_folder", "write_configs"]

MAX_FILE_BYTES = 4 * 10**9


def logical_parameters(model: ShardedModel) -> Iterator[tuple[str, Tensor]]:
    """Every parameter whole, one after the other, on every rank: gathered over gtp_remat, then over tp, and
    cut to its logical shape. A collective of all ranks; values are valid until the next one is asked for."""
    model.schedule.end()
    for unit in model.stores:
        unit.settle()
        for placement in unit.plan.placements:
            yield placement.name, _whole(model, unit, placement)


def _whole(model: ShardedModel, unit: WeightUnit | SmallUnit, placement: Placement) -> Tensor:
    shard = unit.shard(placement.name)
    if placement.sharded:
        shard = model.comm["gtp_remat"].stack(shard, "export").flatten(0, 1)
    rows = placement.tp_local_shape[0]
    local = shard[:rows].contiguous()
    if placement.tp_dim is None or placement.tp_size == 1:
        return local
    parts = model.comm["tp"].stack(local, "export").unbind(0)
    return torch.cat(list(parts), dim=placement.tp_dim)[: placement.spec.shape[0]]


def export(model: ShardedModel, folder: Path, *, tokenizer: Any = None) -> None:
    """Gathers the model and writes it from the layout's first rank. A collective of all ranks.

    Written under a temporary name and renamed, so ``folder`` is complete or as it was before. Raises
    UserError where another folder than an earlier export would have to go, RunError where the disk is full.
    """
    writer = None
    if _is_first(model):
        with removed_unless_whole(folder):
            writer = _Writer(folders_of_export(folder)[1], model.comm.layout)
    for name, value in logical_parameters(model):
        if writer is not None:
            with removed_unless_whole(folder):
                writer.add(name, value)
    if writer is not None:
        with removed_unless_whole(folder):
            writer.close()
            write_configs(model, writer.folder, tokenizer)
        replace_folder(folder)
    model.comm["world"].stack(torch.zeros(1, device=model.comm.device), "end of export")


def _is_first(model: ShardedModel) -> bool:
    return model.comm["world"].index == 0


@contextmanager
def removed_unless_whole(folder: Path) -> Iterator[None]:
    """A part of a model helps nobody, least of all on a full disk."""
    partial = folders_of_export(folder)[1]
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunError(f"the model folder {folder} cannot be written: {reason}") from error


def replace_folder(folder: Path) -> None:
    """Puts the new folder in the place of the one before."""
    _, new, old = folders_of_export(folder)
    try:
        refuse_foreign_folders(folder, old)
    except UserError as error:  # it came while the run was going on
        raise UserError(f"{error}. The trained model is whole: it is in {new}") from error
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_configs(model: ShardedModel, folder: Path, tokenizer: Any) -> None:
    """Writes what a model folder holds beside the weights: configs, and the tokenizer with its template."""
    config = model.module.config
    config.architectures = [type(model.module).__name__]
    config.save_pretrained(folder)
    if model.module.can_generate():
        model.module.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):  # written readable by the owner alone, whatever the umask
        file.chmod((folder / "config.json").stat().st_mode)


class _Writer:
    """Collects tensors and writes a file whenever ``MAX_FILE_BYTES`` are together."""

    def __init__(self, folder: Path, layout: GTPParallelLayout) -> None:
        self.folder = folder
        refuse_foreign_folders(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mark_exported(folder, layout, version=__version__)
        self._tensors: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self._bytes = 0
        self._total_bytes = 0

    def add(self, name: str, value: Tensor) -> None:
        size = value.numel() * value.element_size()
        if self._tensors and self._bytes + size > MAX_FILE_BYTES:
            self._flush()
        self._tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        self._bytes += size
        self._total_bytes += size

    def _flush(self) -> None:
        self._files.append(list(self._tensors))
        save_file(self._tensors, self._part(len(self._files)), metadata={"format": "pt"})
        self._tensors, self._bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number}.safetensors"

    def close(self) -> None:
        self._flush()
        count = len(self._files)
        if count == 1:
            self._part(1).rename(self.folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._files, start=1):
            file = f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self.folder / file)
            weight_map |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
