"""From a checkpoint to a Hugging Face model folder, box by box: without ranks, and never with more than a few
rows of one parameter in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankloom import __version__
from rankloom.checkpoint.files import CHUNK_BYTES, Buffer, safetensors_header, write_stream
from rankloom.checkpoint.folders import find_checkpoint, verify
from rankloom.checkpoint.manifest import Manifest
from rankloom.checkpoint.reading import CheckpointParameters
from rankloom.checkpoint.snapshot import dtype_name
from rankloom.models.export import removed_unless_whole, replace_folder
from rankloom.plan import Box, ParameterSpec
from rankloom.plan.exported import folders_of_export, mark_exported, refuse_foreign_folders

__all__ = ["DEFAULT_SHARD_BYTES", "export_checkpoint", "row_boxes"]

DEFAULT_SHARD_BYTES = 5 * 10**9
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class _Output:
    """One parameter as it is written."""

    spec: ParameterSpec
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.spec.num_elements * self.dtype.itemsize


def export_checkpoint(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Path:
    """Writes the model of a checkpoint (a step's folder, or a folder of them: the latest complete one) as a
    Hugging Face folder: logical shapes, tied weights once, with the configs and tokenizer that the
    checkpoint holds.

    ``dtype``: of the weights, float32 from the masters; None: as they were stored. No file is larger than
    ``shard_bytes``, unless a single parameter is. Returns the checkpoint. Written under a temporary name and
    renamed. Raises UserError for a damaged checkpoint, or a folder no export has written; RunError where the
    disk is full.
    """
    source, target = find_checkpoint(checkpoint), Path(folder)
    manifest = verify(source)
    refuse_foreign_folders(*folders_of_export(target), remedy="name another folder")
    partial = folders_of_export(target)[1]
    with removed_unless_whole(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        mark_exported(partial, manifest.layout.resolve(), version=__version__)
        _write_weights(source, manifest, partial, dtype=dtype, shard_bytes=shard_bytes)
        _copy_side_files(source, manifest, partial, dtype=dtype)
    replace_folder(target)
    return source


def _write_weights(
    source: Path, manifest: Manifest, folder: Path, *, dtype: torch.dtype | None, shard_bytes: int
) -> None:
    outputs = [
        _Output(spec, dtype or getattr(torch, manifest.tensors[f"weight/{spec.name}"].dtype))
        for spec in manifest.model.spec.parameters
    ]
    shards = list(_shards(outputs, shard_bytes))
    count = len(shards)
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    if count == 1:
        names = ["model.safetensors"]
    sources = {kind: CheckpointParameters(source, dtype=kind) for kind in {o.dtype for o in outputs}}
    for name, shard in zip(names, shards, strict=True):
        write_stream(folder / name, _content(shard, sources))
    if count > 1:
        weight_map = {o.spec.name: name for name, shard in zip(names, shards, strict=True) for o in shard}
        total = sum(o.num_bytes for o in outputs)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2))


def _shards(outputs: list[_Output], shard_bytes: int) -> Iterator[list[_Output]]:
    shard: list[_Output] = []
    size = 0
    for output in outputs:
        if shard and size + output.num_bytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(output)
        size += output.num_bytes
    yield shard


def _content(shard: list[_Output], sources: Mapping[torch.dtype, CheckpointParameters]) -> Iterator[Buffer]:
    ordered = sorted(shard, key=lambda output: -output.dtype.itemsize)
    headers = [(o.spec.name, dtype_name(o.dtype), o.spec.shape, o.num_bytes) for o in ordered]
    yield safetensors_header(headers, metadata={"format": "pt"})
    for output in ordered:
        for box in row_boxes(output.spec.shape, output.dtype.itemsize):
            values = sources[output.dtype].read(output.spec, box)
            yield values.view(torch.uint8).numpy().reshape(-1).data


def row_boxes(shape: tuple[int, ...], element_bytes: int) -> Iterator[Box]:
    """A tensor as boxes of whole rows, of a few MiB each."""
    rows, *rest = shape
    row_bytes = element_bytes * torch.Size(rest).numel()
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, rows, step):
        yield Box((start, *(0 for _ in rest)), (min(rows, start + step), *rest))


def _copy_side_files(source: Path, manifest: Manifest, folder: Path, *, dtype: torch.dtype | None) -> None:
    for name in manifest.files:
        if not name.endswith(".safetensors"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    if dtype is not None:
        config: dict[str, Any] = dict(manifest.model.config)
        config.pop("torch_dtype", None)  # as older versions of transformers called it
        text = json.dumps({**config, "dtype": dtype_name(dtype)}, indent=2)
        (folder / "config.json").write_text(text + "\n")
