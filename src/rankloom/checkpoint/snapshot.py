"""What one rank writes, copied out of the way of the next step: its optimizer piece and its random state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankloom.checkpoint.boxes import FlatBox, WriterPlace, part_boxes, written_boxes
from rankloom.checkpoint.files import Buffer, TensorHeader, safetensors_header
from rankloom.checkpoint.manifest import MOMENTS, StoredBox, StoredTensor, box_key
from rankloom.checkpoint.random_state import capture
from rankloom.models import ShardedModel
from rankloom.optim import OwnedPart, ShardedAdamW
from rankloom.plan import ModelPlan

__all__ = ["Snapshot", "dtype_name", "rank_file", "stored_kinds", "stored_tensors", "take_snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """Flat tensors on the CPU, and the boxes that each of them is, one after the other."""

    runs: tuple[tuple[tuple[TensorHeader, ...], Tensor], ...]
    random_keys: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return sum(flat.numel() * flat.element_size() for _, flat in self.runs)

    def buffers(self) -> list[Buffer]:
        """The content of a safetensors file."""
        headers = [header for run, _ in self.runs for header in run]
        return [
            safetensors_header(headers, metadata={"format": "pt"}),
            *(flat.view(torch.uint8).numpy().data for _, flat in self.runs),
        ]


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def stored_kinds(dtype: torch.dtype, *, num_updates: int) -> dict[str, torch.dtype]:
    """What is stored of each parameter, and in which dtype. Before the first update there are no moments,
    and masters are the weights."""
    kinds = {"weight": dtype}
    if num_updates:
        kinds |= {} if dtype is torch.float32 else {"master": torch.float32}
        kinds |= dict.fromkeys(MOMENTS, torch.float32)
    return kinds


def stored_tensors(plan: ModelPlan, kinds: dict[str, torch.dtype]) -> dict[str, StoredTensor]:
    """The table of tensors of a checkpoint that every rank of the plan's layout has written its part of."""
    names = [(kind, p.name) for kind in kinds for p in plan.spec.parameters]
    boxes: dict[str, list[StoredBox]] = {f"{kind}/{name}": [] for kind, name in names}
    for rank in plan.layout.ranks:
        for name, flat in written_boxes(plan, rank):
            for kind in kinds:
                tensor = f"{kind}/{name}"
                boxes[tensor].append(StoredBox(flat.box, rank_file(rank), box_key(tensor, flat.box)))
    return {
        f"{kind}/{p.name}": StoredTensor(p.shape, dtype_name(dtype), tuple(boxes[f"{kind}/{p.name}"]))
        for kind, dtype in kinds.items()
        for p in plan.spec.parameters
    }


@torch.no_grad()
def take_snapshot(model: ShardedModel, optimizer: ShardedAdamW, *, copy: bool) -> Snapshot:
    """Of this rank. Without ``copy``, tensors on the CPU stay views of the model's and optimizer's own."""
    runs = []
    for part, boxes in _written_parts(model, optimizer):
        for kind, source in _sources(optimizer, part).items():
            numel = sum(flat.box.num_elements for flat in boxes)
            flat = source[:numel].detach().to("cpu", copy=copy)
            runs.append((_headers(f"{kind}/{part.range.placement.name}", boxes, flat), flat))
    random = capture(model.comm.device)
    runs += [(((key, dtype_name(t.dtype), t.shape, _num_bytes(t)),), t) for key, t in random.items()]
    runs.sort(key=lambda run: -run[1].element_size())
    return Snapshot(tuple(runs), tuple(random))


def _written_parts(
    model: ShardedModel, optimizer: ShardedAdamW
) -> Iterator[tuple[OwnedPart, tuple[FlatBox, ...]]]:
    place = WriterPlace.of(model.plan.layout, model.comm.rank)
    for piece in optimizer.pieces:
        for part in piece.parts:
            boxes = part_boxes(piece.unit.plan, part.range, place)
            if boxes and place.writes(part.range.placement):
                yield part, boxes


def _sources(optimizer: ShardedAdamW, part: OwnedPart) -> dict[str, Tensor]:
    kinds = stored_kinds(part.stored.dtype, num_updates=optimizer.num_updates)
    values = {"weight": part.stored, "master": part.master}
    if optimizer.num_updates:
        values |= dict(zip(MOMENTS, optimizer.moments(part), strict=True))
    return {kind: values[kind] for kind in kinds}


def _headers(tensor: str, boxes: tuple[FlatBox, ...], flat: Tensor) -> tuple[TensorHeader, ...]:
    dtype, size = dtype_name(flat.dtype), flat.element_size()
    return tuple(
        (box_key(tensor, one.box), dtype, one.box.shape, one.box.num_elements * size) for one in boxes
    )


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
