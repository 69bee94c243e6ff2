"""Folders of exported models: how one is known again, so that no other folder is ever replaced by a new one.

Here, below the code that writes them, since it must be known before any rank starts.
"""

from __future__ import annotations

import json
from pathlib import Path

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.layout.gtp import SIZE_NAMES

__all__ = ["folders_of_export", "mark_exported", "model_folder", "refuse_foreign_folders"]

_MARKER = "rankloom.json"


def model_folder(checkpoint_dir: str | Path) -> Path:
    """Where a run leaves the trained model."""
    return Path(checkpoint_dir) / "model"


def mark_exported(folder: Path, layout: GTPParallelLayout, *, version: str) -> None:
    """Writes the marker into ``folder``: the version that wrote it, and the sizes of the layout."""
    content = {"rankloom_version": version, "layout": {name: getattr(layout, name) for name in SIZE_NAMES}}
    (folder / _MARKER).write_text(json.dumps(content, indent=2) + "\n")


def folders_of_export(folder: Path) -> tuple[Path, Path, Path]:
    """What an export to ``folder`` may remove: it, the unfinished new one, and the replaced old one."""
    return folder, folder.with_name(folder.name + ".partial"), folder.with_name(folder.name + ".old")


def refuse_foreign_folders(*folders: Path, remedy: str = "set checkpoint.dir to another folder") -> None:
    """Raises UserError where one of these, of ``folders_of_export``, holds anything no export has written."""
    for path in folders:
        if path.is_symlink() or (path.exists() and not _is_ours(path)):
            raise UserError(
                f"{path} was not written by rankloom (a folder that was holds {_MARKER}), and an export "
                f"would replace it; move it away, or {remedy}"
            )


def _is_ours(path: Path) -> bool:
    return path.is_dir() and ((path / _MARKER).is_file() or not any(path.iterdir()))
