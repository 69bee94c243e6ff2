"""All ranks go on, or all raise the same error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors import SafetensorError

from rankloom.checkpoint.folders import DamagedCheckpoint
from rankloom.comm import Communicator
from rankloom.errors import RankloomError, RunError, UserError

__all__ = ["together"]

_TEXT_BYTES = 2048
_KINDS = (DamagedCheckpoint, UserError, RunError)
_FOR_USERS = (RankloomError, OSError, SafetensorError)


@contextmanager
def together(comm: Communicator, what: str) -> Iterator[None]:
    """Ends in a collective of all ranks: an error that one rank meets inside is raised by all of them, with
    the rank that met it, unless all have met the same."""
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    texts = comm["world"].stack(_encoded(own, comm), what).cpu()
    failed = [(rank, _decoded(row)) for rank, row in zip(comm["world"].ranks, texts, strict=True) if row[0]]
    if not failed:
        return
    if own is not None and not isinstance(own, _FOR_USERS):
        raise own  # a mistake in the program keeps its traceback
    rank, (kind, text) = failed[0]
    everywhere = len(failed) == comm["world"].size and len({told for _, told in failed}) == 1
    raise kind(text if everywhere else f"rank {rank}: {text}") from own


def _encoded(error: Exception | None, comm: Communicator) -> torch.Tensor:
    """[1 + kind, text ..., 0 ...] as bytes; all zero without an error."""
    encoded = bytearray(1 + _TEXT_BYTES)
    if error is not None:
        kind = next((kind for kind in _KINDS if isinstance(error, kind)), RunError)
        encoded[0] = 1 + _KINDS.index(kind)
        name = "" if isinstance(error, _FOR_USERS) else f"{type(error).__name__}: "
        text = f"{name}{error}".encode()[:_TEXT_BYTES]
        encoded[1 : 1 + len(text)] = text
    return torch.frombuffer(encoded, dtype=torch.uint8).to(comm.device)


def _decoded(row: torch.Tensor) -> tuple[type[RankloomError], str]:
    content = bytes(row.tolist())
    return _KINDS[content[0] - 1], content[1:].rstrip(b"\0").decode(errors="replace")
