"""Loads a checkpoint of any layout into the model and optimizer of another: every rank reads the boxes of its
own optimizer piece, and the updated parameters go out to the copies as after a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankloom.checkpoint.boxes import WriterPlace, part_boxes
from rankloom.checkpoint.folders import read_checksum, read_complete, refuse_altered
from rankloom.checkpoint.manifest import MOMENTS, Manifest
from rankloom.checkpoint.random_state import reseed, restore
from rankloom.checkpoint.reading import CheckpointReader
from rankloom.checkpoint.snapshot import stored_kinds
from rankloom.checkpoint.together import together
from rankloom.comm import Communicator
from rankloom.errors import UserError
from rankloom.models import ShardedModel
from rankloom.optim import OwnedPart, ShardedAdamW
from rankloom.plan import ModelSpec

__all__ = ["Loaded", "load", "verify_shared"]

_MAX_LISTED = 8


@dataclass(frozen=True)
class Loaded:
    """What came with the tensors. ``notes``: what is not as it was saved, in words."""

    manifest: Manifest
    same_layout: bool
    notes: tuple[str, ...]

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def state(self) -> Mapping[str, Any]:
        return self.manifest.state


@torch.no_grad()
def load(model: ShardedModel, optimizer: ShardedAdamW, folder: str | Path, *, seed: int = 0) -> Loaded:
    """Puts weights, masters, moments, the number of updates and random states in place; a collective of all
    ranks. ``seed``: of random streams that cannot be continued.

    Raises UserError, on every rank, for an incomplete or damaged checkpoint (naming the file), and for one
    of another model (listing missing, unexpected and mis-shaped names). The model is then not to be used.
    """
    comm = model.comm
    comm.activity.phase = f"loading the checkpoint {folder}"
    for store in model.stores:
        store.settle()
    with together(comm, "checkpoint: read"):
        reader = CheckpointReader(folder)
        _refuse_another_model(reader.manifest, model.plan.spec, folder)
        with ThreadPoolExecutor(1) as pool:  # every file is hashed by one rank, while it is read
            sums = _verify(reader, pool, index=comm["world"].index, size=comm["world"].size)
            _read_pieces(model, optimizer, reader)
            told = {name: future.result() for name, future in sums.items()}
            refuse_altered(reader.folder, reader.manifest, told)
    optimizer.publish()
    with together(comm, "checkpoint: random states"):
        notes = _continue_random(model, reader, seed=seed)
    if reader.manifest.model.dtype != str(model.dtype).removeprefix("torch."):
        notes.append(f"weights were saved in {reader.manifest.model.dtype} and are kept in {model.dtype} now")
    same = reader.manifest.layout.fingerprint == model.plan.layout.fingerprint()
    return Loaded(reader.manifest, same, tuple(notes))


def _refuse_another_model(manifest: Manifest, spec: ModelSpec, folder: str | Path) -> None:
    kinds = stored_kinds(getattr(torch, manifest.model.dtype), num_updates=manifest.num_updates)
    expected = {f"{kind}/{p.name}": p.shape for kind in kinds for p in spec.parameters}
    present = {name: tensor.shape for name, tensor in manifest.tensors.items()}
    shapes = [
        f"{name} is {list(present[name])}, the model says {list(shape)}"
        for name, shape in expected.items()
        if present.get(name, shape) != shape
    ]
    problems = [
        _listed("missing", [name for name in expected if name not in present]),
        _listed("unexpected", [name for name in present if name not in expected]),
        _listed("of another shape", shapes),
    ]
    if any(problems):
        told = "; ".join(filter(None, problems))
        raise UserError(f"the checkpoint {folder} does not fit the model: {told}")


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{len(names)} {what}: {', '.join(names[:_MAX_LISTED])}{more}"


def verify_shared(folder: str | Path, comm: Communicator) -> None:
    """`verify` by all ranks together, each its share of the files; a collective. Raises UserError on all."""
    with together(comm, "checkpoint: verify"):
        manifest = read_complete(Path(folder))
        names = _share(manifest, index=comm["world"].index, size=comm["world"].size)
        refuse_altered(folder, manifest, {name: read_checksum(Path(folder) / name) for name in names})


def _share(manifest: Manifest, *, index: int, size: int) -> list[str]:
    """The files that a rank hashes; where there are as many ranks as wrote, its own file."""
    names = sorted(manifest.files)
    ranks = [name for name in names if name.endswith(".safetensors")]
    return [*ranks[index::size], *([n for n in names if n not in ranks] if index == 0 else [])]


def _verify(
    reader: CheckpointReader, pool: ThreadPoolExecutor, *, index: int, size: int
) -> dict[str, Future[str]]:
    """Starts hashing this rank's share of the files."""
    names = _share(reader.manifest, index=index, size=size)
    return {name: pool.submit(read_checksum, reader.folder / name) for name in names}


def _read_pieces(model: ShardedModel, optimizer: ShardedAdamW, reader: CheckpointReader) -> None:
    place = WriterPlace.of(model.plan.layout, model.comm.rank)
    optimizer.restart(reader.manifest.num_updates)
    for piece in optimizer.pieces:
        for part in piece.parts:
            boxes = part_boxes(piece.unit.plan, part.range, place)
            for kind, target in _targets(optimizer, part, reader).items():
                for flat in boxes:
                    view = target[flat.offset : flat.offset + flat.box.num_elements].view(flat.box.shape)
                    reader.read(f"{kind}/{part.range.placement.name}", flat.box, view)


def _targets(
    optimizer: ShardedAdamW, part: OwnedPart, reader: CheckpointReader
) -> Mapping[str, torch.Tensor]:
    """Kinds to read, and the flat views they go to; stored weights are made from the masters later."""
    kind = "master" if reader.has(f"master/{part.range.placement.name}") else "weight"
    targets = {kind: part.master}
    if optimizer.num_updates:
        targets |= dict(zip(MOMENTS, optimizer.moments(part), strict=True))
    return targets


def _continue_random(model: ShardedModel, reader: CheckpointReader, *, seed: int) -> list[str]:
    """Random streams go on in the same layout, rank by rank; else they start anew, and a note says so."""
    manifest, rank = reader.manifest, model.comm.rank
    kept: Iterable[int] = manifest.random
    if manifest.layout.fingerprint == model.plan.layout.fingerprint() and rank in kept:
        told = manifest.random[rank]
        restore(reader.read_keys(told["file"], list(told["keys"])), model.comm.device)
        return []
    reseed(seed=seed, step=manifest.step, rank=rank)
    saved = f"was saved on {manifest.layout.describe()}" if manifest.random else "holds none"
    return [
        f"random states: the checkpoint {saved}; every rank starts a new stream from seed {seed}, step "
        f"{manifest.step} and its rank"
    ]
