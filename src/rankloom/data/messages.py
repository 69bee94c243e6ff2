"""Objects through a pipe, with arrays that are mapped from files: as the file and the place in it, not as
their content."""

from __future__ import annotations

import io
import mmap
import pickle
from typing import IO, Any

import numpy as np

__all__ = ["receive", "send"]

_HEAD_BYTES = 8


def send(stream: IO[bytes], value: object) -> None:
    """Writes ``value`` for `receive` in a process that sees the same files."""
    content = io.BytesIO()
    _Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    stream.write(content.tell().to_bytes(_HEAD_BYTES, "little"))
    stream.write(content.getbuffer())
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """What the other side sent. Raises EOFError where it is gone."""
    head = stream.read(_HEAD_BYTES)
    size = int.from_bytes(head, "little")
    content = stream.read(size) if len(head) == _HEAD_BYTES else b""
    if len(head) < _HEAD_BYTES or len(content) < size:
        raise EOFError
    return pickle.loads(content)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        # A part of a mapped array keeps the offset of the whole, so only whole ones can be told by it.
        if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.filename is not None:
            return _map, (str(value.filename), value.dtype, value.offset, value.shape)
        return NotImplemented


def _map(filename: str, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> Any:
    return np.memmap(filename, dtype=dtype, mode="r", offset=offset, shape=shape)
