"""checkpoint.json: what a checkpoint holds, in which files. Written last: a folder that has it is complete.

Tensors are named "<kind>/<Hugging Face name>" and have their logical, unpadded shapes. Each is given by boxes
that cover it exactly once, wherever they were written: nothing here depends on a layout.

    weight       the parameter in the dtype of the model, padding and tied copies left out
    master       fp32, unless the weight is fp32 itself
    exp_avg, exp_avg_sq   both moments of Adam, fp32; only after a first update
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan import Box, ModelSpec
from rankloom.records.words import counted

__all__ = [
    "FORMAT_VERSION",
    "KINDS",
    "MANIFEST",
    "MOMENTS",
    "FileFacts",
    "LayoutFacts",
    "Manifest",
    "ModelFacts",
    "StoredBox",
    "StoredTensor",
    "box_key",
    "read_manifest",
]

FORMAT_VERSION = 1
MANIFEST = "checkpoint.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = ("weight", "master", *MOMENTS)
_SEAL = "sha256"


@dataclass(frozen=True)
class FileFacts:
    """Size and sha256 (hex) of a file of the checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredBox:
    """``box`` of a tensor: the tensor ``key`` of the safetensors file ``file``."""

    box: Box
    file: str
    key: str


@dataclass(frozen=True)
class StoredTensor:
    """A whole logical tensor; ``dtype`` in the words of torch ("float32")."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayoutFacts:
    """The layout that wrote a checkpoint."""

    sizes: Mapping[str, int]
    sequence_parallel: bool
    rank_order: str
    rank_offset: int
    fingerprint: str

    @classmethod
    def of(cls, layout: GTPParallelLayout) -> LayoutFacts:
        return cls(
            layout.sizes,
            layout.sequence_parallel,
            layout.rank_order,
            layout.rank_offset,
            layout.fingerprint(),
        )

    def resolve(self) -> GTPParallelLayout:
        """The layout itself."""
        names = (
            "world_size",
            "tensor_model_parallel_size",
            "tensor_parallel_num_weight_shards",
            "tensor_parallel_num_sequence_shards",
            "context_parallel_size",
            "pipeline_model_parallel_size",
        )
        return GTPParallelLayout(
            **{name: self.sizes[name] for name in names},
            sequence_parallel=self.sequence_parallel,
            rank_order=self.rank_order,
            rank_offset=self.rank_offset,
        )

    def describe(self) -> str:
        """ "8 ranks: TP 2, W 4, Q 2, CP 2", with the rank order where it is not the default."""
        s = self.sizes
        words = (
            f"{counted(s['world_size'], 'rank')}: TP {s['tensor_model_parallel_size']}, "
            f"W {s['tensor_parallel_num_weight_shards']}, Q {s['tensor_parallel_num_sequence_shards']}, "
            f"CP {s['context_parallel_size']}"
        )
        return words if self.rank_order.startswith("tp-gtp") else f"{words}, {self.rank_order}"


@dataclass(frozen=True)
class ModelFacts:
    """``config``: the content of the model's config.json; ``dtype``: of the weights."""

    config: Mapping[str, Any]
    dtype: str
    tied: bool

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec.from_config(self.config)


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.json.

    Attributes:
        num_updates: optimizer updates so far; 0: no moments, and the masters are the weights.
        state: what the run handed in; a number ``consumed_samples`` in it is shown by listings.
        rank_state: what single ranks handed in, by global rank.
        random: file and keys of each rank's random state, by global rank.
        saved_at: seconds since 1970.
    """

    step: int
    layout: LayoutFacts
    model: ModelFacts
    num_updates: int
    state: Mapping[str, Any]
    config: Mapping[str, Any] | None
    files: Mapping[str, FileFacts]
    tensors: Mapping[str, StoredTensor]
    rank_state: Mapping[int, Any] = field(default_factory=dict)
    random: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    rankloom_version: str = ""
    saved_at: float = 0.0
    format_version: int = FORMAT_VERSION

    @property
    def num_bytes(self) -> int:
        return sum(facts.bytes for facts in self.files.values())

    def to_json(self) -> str:
        """The text of checkpoint.json, sealed with a checksum of its own content."""
        content = {
            "format_version": self.format_version,
            "rankloom_version": self.rankloom_version,
            "step": self.step,
            "saved_at": self.saved_at,
            "layout": asdict(self.layout),
            "model": asdict(self.model),
            "optimizer": {"name": "adamw", "num_updates": self.num_updates},
            "state": self.state,
            "rank_state": {str(rank): value for rank, value in self.rank_state.items()},
            "config": self.config,
            "random": {str(rank): value for rank, value in self.random.items()},
            "files": {name: asdict(facts) for name, facts in self.files.items()},
            "tensors": {name: _tensor_json(tensor) for name, tensor in self.tensors.items()},
        }
        text = _canonical(content)  # once: with thousands of files it takes seconds
        return f'{text[:-1]},"{_SEAL}":"{_checksum(text)}"}}'

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError, KeyError or TypeError for anything that `to_json` does not write."""
        content = json.loads(text)
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"format version {content['format_version']} is not known; this rankloom reads version "
                f"{FORMAT_VERSION}"
            )
        if content.pop(_SEAL) != _checksum(_canonical(content)):
            raise ValueError("its content was altered: the checksum it ends with is another one's")
        return cls(
            step=content["step"],
            layout=LayoutFacts(**content["layout"]),
            model=ModelFacts(**content["model"]),
            num_updates=content["optimizer"]["num_updates"],
            state=content["state"],
            config=content["config"],
            files={_inside(name): FileFacts(**facts) for name, facts in content["files"].items()},
            tensors={name: _tensor(tensor) for name, tensor in content["tensors"].items()},
            rank_state={int(rank): value for rank, value in content["rank_state"].items()},
            random={
                int(rank): {**value, "file": _inside(value["file"])}
                for rank, value in content["random"].items()
            },
            rankloom_version=content["rankloom_version"],
            saved_at=content["saved_at"],
        )


def _tensor_json(tensor: StoredTensor) -> dict[str, Any]:
    boxes = [
        {"starts": b.box.starts, "stops": b.box.stops, "file": b.file, "key": b.key} for b in tensor.boxes
    ]
    return {"shape": tensor.shape, "dtype": tensor.dtype, "boxes": boxes}


def _tensor(content: Mapping[str, Any]) -> StoredTensor:
    boxes = tuple(
        StoredBox(Box(tuple(b["starts"]), tuple(b["stops"])), _inside(b["file"]), b["key"])
        for b in content["boxes"]
    )
    return StoredTensor(tuple(content["shape"]), content["dtype"], boxes)


def _inside(name: str) -> str:
    """A file of the checkpoint's own folder. Raises ValueError for any other: a stranger's checkpoint could
    name files anywhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} is no file in its folder")
    return name


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def box_key(tensor: str, box: Box) -> str:
    """The name of a box in its file: "exp_avg/model.norm.weight[0:16]"."""
    return f"{tensor}[{_ranges(box.starts, box.stops)}]"


def _ranges(starts: Sequence[int], stops: Sequence[int]) -> str:
    return ",".join(f"{start}:{stop}" for start, stop in zip(starts, stops, strict=True))


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a checkpoint folder. Raises UserError where it is missing or cannot be read."""
    file = Path(folder) / MANIFEST
    try:
        return Manifest.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} cannot be read: {reason}") from error
