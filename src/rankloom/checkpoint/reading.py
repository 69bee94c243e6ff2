"""Reads any box of any tensor of a checkpoint, whatever boxes it was written in. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankloom.checkpoint.boxes import inside, intersection
from rankloom.checkpoint.folders import DamagedCheckpoint, read_complete
from rankloom.checkpoint.manifest import Manifest, StoredTensor
from rankloom.errors import UserError
from rankloom.plan import Box, ParameterSpec

__all__ = ["CheckpointParameters", "CheckpointReader"]


class CheckpointReader:
    """A complete checkpoint. Raises UserError for one that is not, or whose boxes leave a hole."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_complete(self.folder)
        self._open: dict[str, Any] = {}
        for name, tensor in self.manifest.tensors.items():
            covered = sum(stored.box.num_elements for stored in tensor.boxes)
            if covered != tensor.num_elements:
                raise DamagedCheckpoint(
                    f"the checkpoint {folder} is damaged: its boxes hold {covered:,} of the "
                    f"{tensor.num_elements:,} elements of {name}"
                )

    def has(self, name: str) -> bool:
        return name in self.manifest.tensors

    def read(self, name: str, box: Box, out: Tensor) -> None:
        """Copies a box of the tensor ``name`` ("exp_avg/lm_head.weight") into ``out``, of the box's shape and
        any dtype."""
        tensor = self._tensor(name)
        for stored in tensor.boxes:
            both = intersection(stored.box, box)
            if both is not None:
                with self._named(stored.file) as file:
                    values = file.get_slice(stored.key)[inside(both, stored.box)]
                out[inside(both, box)].copy_(values)

    def read_keys(self, file: str, keys: list[str]) -> dict[str, Tensor]:
        """Whole tensors of one file."""
        with self._named(file) as opened:
            return {key: opened.get_tensor(key) for key in keys}

    def _tensor(self, name: str) -> StoredTensor:
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise UserError(f"the checkpoint {self.folder} has no {name}") from None

    @contextmanager
    def _named(self, name: str) -> Iterator[Any]:
        """The open file; what it does not hold as it should is said with its name."""
        try:
            if name not in self._open:
                (self.folder / name).open("rb").close()  # whose errors are truer than those of the library
                self._open[name] = safe_open(self.folder / name, framework="pt")
            yield self._open[name]
        except OSError as error:
            raise DamagedCheckpoint(
                f"{self.folder / name} cannot be read: {error.strerror or error}"
            ) from error
        except SafetensorError as error:
            raise DamagedCheckpoint(
                f"the checkpoint {self.folder} is damaged: {name} cannot be read as safetensors: {error}"
            ) from error


class CheckpointParameters:
    """The parameters alone, for `rankloom.models.fill`: to start a new run from a checkpoint. In fp32 they
    are the masters, where there are any."""

    def __init__(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        self._reader = CheckpointReader(folder)
        self._dtype = dtype

    @property
    def manifest(self) -> Manifest:
        return self._reader.manifest

    def read(self, spec: ParameterSpec, box: Box) -> Tensor:
        """The box of the logical parameter."""
        master = f"master/{spec.name}"
        exact = self._dtype is torch.float32 and self._reader.has(master)
        out = torch.empty(box.shape, dtype=self._dtype)
        self._reader.read(master if exact else f"weight/{spec.name}", box, out)
        return out
