"""One run at a time in a run's folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankloom.config import ResolvedConfig
from rankloom.errors import UserError

__all__ = ["run_lock"]


@contextmanager
def run_lock(resolved: ResolvedConfig) -> Iterator[None]:
    """Holds ``<checkpoint.dir>/.lock``. It ends with its holder, however that ends, so no run waits in vain.

    Raises UserError when another run holds it, or the folder cannot be written.
    """
    folder = Path(resolved.checkpoint.dir)
    where = resolved.where("checkpoint.dir") or "the default"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("a")  # closed in programs that this one starts
    except OSError as error:
        raise UserError(
            f"checkpoint.dir: {folder} cannot be written: {error.strerror or error} ({where})"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is using this folder: {folder}; wait for its end, or set checkpoint.dir to "
                f"another folder ({where})"
            ) from None
        except OSError as error:
            raise UserError(
                f"checkpoint.dir: {folder / '.lock'} cannot be locked: {error.strerror or error}; set "
                f"checkpoint.dir to a folder on a file system with locks ({where})"
            ) from error
        yield
