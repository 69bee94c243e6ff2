"""``rankloom import``: a Hugging Face model folder as a checkpoint of step 0."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankloom.errors import UserError


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model folder.", show_default=False)],
    checkpoint: Annotated[
        Path,
        typer.Argument(help="The folder of checkpoints to make it in (checkpoint.dir).", show_default=False),
    ],
) -> None:
    """Make a checkpoint of step 0 of a Hugging Face model folder, for a run with this checkpoint.dir."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    from rankloom.checkpoint import import_folder

    typer.echo(f"imported {folder} as {import_folder(folder, checkpoint)}")
