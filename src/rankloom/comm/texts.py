"""JSON between the ranks of a group: rare, and small beside tensors."""

from __future__ import annotations

import json
from typing import Any

import torch

from rankloom.comm.group import Group

__all__ = ["tell_all"]


def tell_all(group: Group, mine: object, what: str, *, device: torch.device) -> list[Any]:
    """What every member says, in member order, on each of them. A collective of the group.

    Raises TypeError for what is no JSON.
    """
    text = json.dumps(mine).encode()
    length = torch.tensor([len(text)], dtype=torch.int64, device=device)
    lengths = group.stack(length, f"{what}: lengths").flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    told = group.stack(padded.to(device), what).cpu().numpy()
    return [json.loads(row[:number].tobytes()) for row, number in zip(told, lengths, strict=True)]
