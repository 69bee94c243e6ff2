"""Files that are on the disk when the call returns, with the checksum of what was meant to be written.

Safetensors files are written here piece by piece, since the library's writer wants all tensors of a file in
memory and leaves no checksum; they are read by the library.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankloom.checkpoint.manifest import FileFacts

__all__ = [
    "TensorHeader",
    "checksum",
    "replace_text",
    "safetensors_header",
    "sync_folder",
    "write_file",
    "write_stream",
]

Buffer = bytes | memoryview
TensorHeader = tuple[str, str, Sequence[int], int]  # key, dtype in the words of torch, shape, bytes
CHUNK_BYTES = 1 << 20  # larger ones leave the caches of a processor before they are used twice
_HASHED_ASIDE_BYTES = 1 << 22  # smaller files are not worth a thread
DTYPE_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
}


def safetensors_header(tensors: Iterable[TensorHeader], *, metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a safetensors file whose tensors follow in this order, without gaps. Larger elements
    come first, so that every tensor is aligned."""
    content: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for key, dtype, shape, num_bytes in tensors:
        content[key] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [at, at + num_bytes],
        }
        at += num_bytes
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(
    path: Path, buffers: Sequence[Buffer], *, cancelled: Callable[[], bool] = lambda: False
) -> FileFacts:
    """Writes the buffers one after the other and syncs the file. The checksum is that of the buffers, taken
    beside the writing, so it also tells what the disk did to them later.

    Raises OSError; a file that could not be written is removed. ``cancelled`` is asked now and then, and ends
    the writing with InterruptedError.
    """
    digest = hashlib.sha256()
    num_bytes = sum(len(buffer) for buffer in buffers)
    hashing = threading.Thread(target=_hash, args=(digest, buffers, cancelled), daemon=True)
    if aside := num_bytes > _HASHED_ASIDE_BYTES:
        hashing.start()
    else:
        _hash(digest, buffers, cancelled)
    try:
        with _synced(path) as file:
            for chunk in _chunks(buffers):
                if cancelled():
                    raise InterruptedError(f"the writing of {path} was given up")
                _write_all(file, chunk)
    finally:
        if aside:
            hashing.join()
    return FileFacts(num_bytes, digest.hexdigest())


def write_stream(path: Path, buffers: Iterable[Buffer]) -> int:
    """Writes buffers that are made one after the other; syncs the file. Returns its bytes."""
    num_bytes = 0
    with _synced(path) as file:
        for buffer in buffers:
            _write_all(file, buffer)
            num_bytes += len(buffer)
    return num_bytes


@contextmanager
def _synced(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk, its space is needed
        raise


def _write_all(file: int, chunk: Buffer) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(file, view) :]


def _hash(digest: hashlib._Hash, buffers: Sequence[Buffer], cancelled: Callable[[], bool]) -> None:
    for chunk in _chunks(buffers):
        if cancelled():
            return
        digest.update(chunk)


def _chunks(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer)
        for at in range(0, len(view), CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


def checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_text(path: Path, text: str) -> FileFacts:
    """Puts a small file in place of the one before, or of none: complete, synced, or as it was."""
    new = path.with_name(path.name + ".tmp")
    facts = write_file(new, [text.encode()])
    new.rename(path)
    sync_folder(path.parent)
    return facts


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder last; file systems that cannot are taken at their word."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
