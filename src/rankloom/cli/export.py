"""``rankloom export``: a checkpoint as a Hugging Face model folder."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rankloom.errors import UserError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class ExportedDtype(StrEnum):
    """Of the exported weights."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, or a folder of checkpoints (its latest complete one).", show_default=False
        ),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The model folder to write.", show_default=False)
    ],
    dtype: Annotated[
        ExportedDtype | None,
        typer.Option(help="Of the weights; float32 takes the masters. Left out: as they are stored."),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="The most a file may hold, as 5GB or 500MB.")] = "5GB",
) -> None:
    """Write a checkpoint's model as a Hugging Face folder: safetensors, configs and tokenizer."""
    shard_bytes = size_in_bytes(shard_size)
    if not checkpoint.is_dir():
        raise UserError(f"{checkpoint}: no such folder")
    import torch

    from rankloom.checkpoint import export_checkpoint

    wanted = None if dtype is None else getattr(torch, dtype.value)
    source = export_checkpoint(checkpoint, folder, dtype=wanted, shard_bytes=shard_bytes)
    typer.echo(f"exported {source} to {folder}")


def size_in_bytes(text: str) -> int:
    """The bytes of "5GB", "500 MB" or "2GiB". Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if (
        match is None
        or match[2].upper() not in _UNITS
        or not (size := float(match[1]) * _UNITS[match[2].upper()])
    ):
        raise UserError(f"--shard-size must be a size such as 5GB, 500MB or 2GiB, not {text!r}")
    return int(size)
