"""Checksums of large data files, remembered as long as a file is not touched."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rankloom.records import DataFile
from rankloom.records.source import identity_of

__all__ = ["known_identity"]

SMALL_BYTES = 64 * 2**20  # read faster than it is worth remembering
SETTLED_S = 2.0  # a younger file may still change within the resolution of its times


def known_identity(files: Sequence[DataFile], folder: Path) -> str:
    """`identity_of` the files; those of large ones are kept in ``folder`` under their place, size and times.

    Raises:
        UserError: a file cannot be read.
    """
    return hashlib.sha256("\n".join(_known(file, folder) for file in files).encode()).hexdigest()


def _known(file: DataFile, folder: Path) -> str:
    state = _state(file)
    if state is None:
        return identity_of(file)
    kept = folder / hashlib.sha256(state.encode()).hexdigest()[:32]
    try:
        return kept.read_text()
    except OSError:
        identity = identity_of(file)
    if _state(file) == state:
        _keep(kept, identity)
    return identity


def _state(file: DataFile) -> str | None:
    """What changes when a file does; None for what is small, young or gone."""
    if file.kind == "python-docs":
        return None
    try:
        paths = sorted(file.folder.iterdir()) if file.kind == "dataset" else [Path(file.path)]
        stats = [(path, path.stat()) for path in paths]
    except OSError:
        return None
    youngest = max((max(stat.st_mtime, stat.st_ctime) for _, stat in stats), default=0.0)
    if sum(stat.st_size for _, stat in stats) < SMALL_BYTES or time.time() - youngest < SETTLED_S:
        return None
    facts = [
        f"{path.resolve()} {s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
        for path, s in stats
    ]
    return "\n".join([file.kind, *facts])


def _keep(path: Path, identity: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(identity)
        os.replace(made, path)
    except OSError:
        pass  # remembering is a convenience; a cache that cannot be written is refused where it is needed
