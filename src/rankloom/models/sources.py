"""Where parameters come from: a seed, or a folder of safetensors. Each gives any box of any parameter by
name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankloom.errors import UserError
from rankloom.models.sharded import ShardedModel
from rankloom.plan import Box, ModelSpec, ParameterSpec, Role

__all__ = ["ParameterSource", "SafetensorsFolder", "SeededParameters", "fill"]

_MAX_LISTED = 8


class ParameterSource(Protocol):
    def read(self, spec: ParameterSpec, box: Box) -> Tensor:
        """The box of the logical parameter."""
        ...


def fill(model: ShardedModel, source: ParameterSource) -> None:
    """Writes this rank's part of every parameter into its store, one tensor at a time; padding stays zero."""
    tp, gtp = model.comm["tp"].index, model.comm["gtp_remat"].index
    for unit in model.stores:
        for placement in unit.plan.placements:
            box = placement.box(tp, gtp if placement.sharded else 0)
            if box.num_elements:
                unit.shard(placement.name)[: box.shape[0]].copy_(source.read(placement.spec, box))


class SeededParameters:
    """Fresh parameters drawn from (seed, name) alone, so that every layout starts from the same model:
    linears and embeddings normal(0, ``std``), norms one, biases zero. Each is drawn whole, in fp32, and cut
    afterwards."""

    def __init__(self, seed: int, *, std: float) -> None:
        self._seed = seed
        self._std = std

    def whole(self, spec: ParameterSpec) -> Tensor:
        """The whole parameter, fp32, on the CPU."""
        if spec.role in (Role.NORM, Role.HEAD_NORM):
            return torch.ones(spec.shape)
        if spec.role in (Role.COLUMN_BIAS, Role.ROW_BIAS):
            return torch.zeros(spec.shape)
        digest = hashlib.sha256(f"{self._seed}:{spec.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.empty(spec.shape).normal_(0.0, self._std, generator=generator)

    def read(self, spec: ParameterSpec, box: Box) -> Tensor:
        return self.whole(spec)[_index(box)]


class SafetensorsFolder:
    """The safetensors files of a Hugging Face model folder. Strict both ways: missing, unexpected and
    mis-shaped names raise UserError before anything is read."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._files = _files_by_name(folder)
        self._open: dict[Path, Any] = {}
        self._check(folder, spec)

    def read(self, spec: ParameterSpec, box: Box) -> Tensor:
        return self._slice(spec.name)[_index(box)]

    def _slice(self, name: str) -> Any:
        path = self._files[name]
        if path not in self._open:
            self._open[path] = _open(path)
        return self._open[path].get_slice(name)

    def _check(self, folder: Path, spec: ModelSpec) -> None:
        expected = {p.name: p.shape for p in spec.parameters}
        ignored = {"lm_head.weight"} if spec.tie_word_embeddings else set()
        present = {n for n in self._files if n not in ignored and not n.endswith("rotary_emb.inv_freq")}
        shapes = {n: tuple(self._slice(n).get_shape()) for n in sorted(present & expected.keys())}
        problems = [
            _listed("missing", sorted(expected.keys() - present)),
            _listed("unexpected", sorted(present - expected.keys())),
            _listed(
                "of another shape",
                [
                    f"{n} is {list(s)}, config says {list(expected[n])}"
                    for n, s in shapes.items()
                    if s != expected[n]
                ],
            ),
        ]
        if any(problems):
            raise UserError(
                f"the weights in {folder} do not fit its config.json: " + "; ".join(p for p in problems if p)
            )


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{len(names)} {what}: {', '.join(names[:_MAX_LISTED])}{more}"


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))


def _files_by_name(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in _weight_map(index).items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"no *.safetensors files in {folder}: it is not a model folder that can be read")
    return {name: path for path in files for name in _open(path).keys()}  # noqa: SIM118 (not a dict)


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{index} cannot be read: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise UserError(f"{index} must hold a weight_map from the names of parameters to files of its folder")
    return weight_map


def _open(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path} is named by the index of its folder but is not there")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from error
