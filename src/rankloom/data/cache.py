"""Folders that are built once by whoever comes first, and found whole or not at all by everybody else."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankloom.errors import UserError

__all__ = ["cached_folder", "default_cache_dir"]

MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20
MAX_BLOCKS = 64


def default_cache_dir() -> Path:
    """Where built data lies unless ``data.cache_dir`` says otherwise."""
    return Path(".cache") / "rankloom"


def cached_folder(root: Path, key: str, *, build: Callable[[Path], None]) -> Path:
    """The folder ``root/key``, built by ``build(empty folder)`` if it is missing or damaged.

    Processes that come at the same time wait for the first one (a file lock, which ends with its holder, so a
    killed builder leaves nobody waiting). The folder appears by one rename, after its contents are complete.

    Raises:
        UserError: the cache folder cannot be written; and whatever ``build`` raises.
    """
    final = root / key
    if _intact(final):
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{key}.lock"):
            if not _intact(final):
                _build(final, build)
    except OSError as error:
        raise UserError(
            f"the data cache {root} cannot be written: {error.strerror or error} "
            f"({error.filename or final}); free some space or set data.cache_dir to another folder"
        ) from error
    return final


def _build(final: Path, build: Callable[[Path], None]) -> None:
    # The lock is held: folders of this key under a temporary name were left by builders that were killed.
    for left in [final, *final.parent.glob(f"{final.name}.tmp-*")]:
        if left.exists():
            shutil.rmtree(left)
    made = Path(tempfile.mkdtemp(prefix=f"{final.name}.tmp-", dir=final.parent))
    try:
        build(made)
        (made / MANIFEST).write_text(json.dumps(_contents(made), indent=1))
        made.chmod(0o755)
        os.replace(made, final)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _intact(folder: Path) -> bool:
    try:
        expected = json.loads((folder / MANIFEST).read_text())
        return bool(expected == _contents(folder))
    except (OSError, ValueError):
        return False  # missing, half removed or damaged: all three mean that it must be built


def _contents(folder: Path) -> dict[str, list[int | str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _checksum(path)] for path in files}


def _checksum(path: Path) -> str:
    """A checksum of the whole file up to 64 MiB; of 64 blocks spread evenly over a larger one."""
    size = path.stat().st_size
    num_blocks = -(-size // BLOCK_BYTES)
    read = min(num_blocks, MAX_BLOCKS)
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        for place in range(read):
            stream.seek(place * (num_blocks - 1) // max(read - 1, 1) * BLOCK_BYTES)
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()
