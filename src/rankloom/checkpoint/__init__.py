"""Checkpoints that are complete or not there, and that any layout can load; Hugging Face folders in and out.

A name loads its module when it is used: what only looks at folders needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankloom.checkpoint.exporting import export_checkpoint
    from rankloom.checkpoint.folders import (
        DamagedCheckpoint,
        complete_checkpoints,
        find_checkpoint,
        find_latest,
        list_checkpoints,
        verify,
    )
    from rankloom.checkpoint.importing import import_folder
    from rankloom.checkpoint.loading import Loaded, load, verify_shared
    from rankloom.checkpoint.manifest import Manifest, read_manifest
    from rankloom.checkpoint.reading import CheckpointParameters
    from rankloom.checkpoint.saving import Checkpointer, save

__all__ = [
    "CheckpointParameters",
    "Checkpointer",
    "DamagedCheckpoint",
    "Loaded",
    "Manifest",
    "complete_checkpoints",
    "export_checkpoint",
    "find_checkpoint",
    "find_latest",
    "import_folder",
    "list_checkpoints",
    "load",
    "read_manifest",
    "save",
    "verify",
    "verify_shared",
]

_MODULES = {
    "CheckpointParameters": "reading",
    "Checkpointer": "saving",
    "DamagedCheckpoint": "folders",
    "Loaded": "loading",
    "Manifest": "manifest",
    "complete_checkpoints": "folders",
    "export_checkpoint": "exporting",
    "find_checkpoint": "folders",
    "find_latest": "folders",
    "import_folder": "importing",
    "list_checkpoints": "folders",
    "load": "loading",
    "read_manifest": "manifest",
    "save": "saving",
    "verify": "folders",
    "verify_shared": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
