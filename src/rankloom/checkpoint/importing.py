"""From a Hugging Face model folder to a checkpoint of step 0, box by box, in the dtypes of its files."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankloom import __version__
from rankloom.checkpoint.exporting import row_boxes
from rankloom.checkpoint.files import Buffer, replace_text, safetensors_header, write_file, write_stream
from rankloom.checkpoint.folders import (
    checkpoint_folder,
    find_latest,
    partial_folder,
    prepare_partial,
    publish,
)
from rankloom.checkpoint.manifest import (
    MANIFEST,
    FileFacts,
    LayoutFacts,
    Manifest,
    ModelFacts,
    StoredBox,
    StoredTensor,
    box_key,
)
from rankloom.checkpoint.snapshot import dtype_name
from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from rankloom.models import SafetensorsFolder
from rankloom.plan import Box, ModelSpec, ParameterSpec

__all__ = ["import_folder"]

_FILE_BYTES = 2 * 10**9
_SIDE_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
_NOT_OURS = frozenset({"rankloom.json", MANIFEST})


@dataclass(frozen=True)
class _Input:
    """One parameter as its file holds it."""

    spec: ParameterSpec
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.spec.num_elements * self.dtype.itemsize

    @property
    def whole(self) -> Box:
        return Box((0,) * len(self.spec.shape), self.spec.shape)

    @property
    def tensor(self) -> str:
        return f"weight/{self.spec.name}"


def import_folder(folder: str | Path, directory: str | Path) -> Path:
    """Makes the checkpoint ``directory``/step-00000000 of a model folder: weights in the dtype they have, no
    optimizer state, configs and tokenizer as they are. Returns the checkpoint's folder.

    Raises UserError for a folder of another family, for missing, unexpected and mis-shaped names, and for a
    ``directory`` that holds checkpoints; RunError where it cannot be written.
    """
    source, target = Path(folder), checkpoint_folder(Path(directory), 0)
    config = _config(source)
    spec = ModelSpec.from_config(config)
    weights = SafetensorsFolder(source, spec)
    if (latest := find_latest(directory)) is not None:
        raise UserError(
            f"{directory} holds checkpoints already, the latest is {latest.name}; name another folder"
        )
    try:
        prepare_partial(target)
        _write(source, weights, spec, config, target)
        publish(target)
    except OSError as error:
        raise RunError(f"the checkpoint {target} cannot be written: {error.strerror or error}") from error
    return target


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold one JSON object")
    return content


def _write(
    source: Path, weights: SafetensorsFolder, spec: ModelSpec, config: dict[str, Any], target: Path
) -> None:
    partial = partial_folder(target)
    files = {
        name: write_file(_made(partial / name), [(source / name).read_bytes()])
        for name in _side_files(source)
    }
    tensors: dict[str, StoredTensor] = {}
    for number, group in enumerate(_groups(weights, spec)):
        name = f"weights-{number:05d}.safetensors"
        files[name] = _write_group(partial / name, group, weights)
        for each in group:
            stored = StoredBox(each.whole, name, box_key(each.tensor, each.whole))
            tensors[each.tensor] = StoredTensor(each.spec.shape, dtype_name(each.dtype), (stored,))
    elements: Counter[str] = Counter()
    for tensor in tensors.values():
        elements[tensor.dtype] += tensor.num_elements
    manifest = Manifest(
        step=0,
        layout=LayoutFacts.of(GTPParallelLayout.resolve(world_size=1)),
        model=ModelFacts(config, dtype=elements.most_common(1)[0][0], tied=spec.tie_word_embeddings),
        num_updates=0,
        state={},
        config=None,
        files=files,
        tensors=tensors,
        rankloom_version=__version__,
        saved_at=time.time(),
    )
    replace_text(partial / MANIFEST, manifest.to_json())


def _side_files(folder: Path) -> Iterator[str]:
    paths = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*.jinja")]
    for path in sorted(paths):
        index = path.name.endswith(".safetensors.index.json")
        if path.is_file() and path.suffix in _SIDE_SUFFIXES and path.name not in _NOT_OURS and not index:
            yield path.relative_to(folder).as_posix()


def _made(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _groups(weights: SafetensorsFolder, spec: ModelSpec) -> Iterator[list[_Input]]:
    """The parameters of one file after the other."""
    group: list[_Input] = []
    for parameter in spec.parameters:
        each = _Input(parameter, _dtype(weights, parameter))
        if group and sum(e.num_bytes for e in group) + each.num_bytes > _FILE_BYTES:
            yield group
            group = []
        group.append(each)
    yield group


def _dtype(weights: SafetensorsFolder, spec: ParameterSpec) -> torch.dtype:
    first = Box((0,) * len(spec.shape), (1,) * len(spec.shape))
    return weights.read(spec, first).dtype


def _write_group(file: Path, group: list[_Input], weights: SafetensorsFolder) -> FileFacts:
    digest = hashlib.sha256()

    def through(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
        for buffer in buffers:
            digest.update(buffer)
            yield buffer

    num_bytes = write_stream(file, through(_content(group, weights)))
    return FileFacts(num_bytes, digest.hexdigest())


def _content(group: list[_Input], weights: SafetensorsFolder) -> Iterator[Buffer]:
    ordered = sorted(group, key=lambda each: -each.dtype.itemsize)
    headers = [(box_key(e.tensor, e.whole), dtype_name(e.dtype), e.spec.shape, e.num_bytes) for e in ordered]
    yield safetensors_header(headers, metadata={"format": "pt"})
    for each in ordered:
        for box in row_boxes(each.spec.shape, each.dtype.itemsize):
            values = weights.read(each.spec, box).contiguous()
            yield values.view(torch.uint8).numpy().reshape(-1).data
