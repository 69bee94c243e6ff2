"""Energon's own state of a loader as plain JSON values, and back: its fields, no pickle."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Any

from megatron.energon.flavors.webdataset.sample_loader import SliceState
from megatron.energon.savable_loader import SavableDataLoaderState
from megatron.energon.state import FlexState

__all__ = ["decoded", "encoded", "is_inside_epoch"]

PLAIN = (str, int, float, bool, type(None))


def encoded(state: SavableDataLoaderState) -> Any:
    """Raises TypeError for a value of a kind that is not known here."""
    (worker,) = state.worker_states
    return _encoded(worker)


def decoded(content: Any) -> SavableDataLoaderState:
    """Raises TypeError for what `encoded` did not make."""
    return SavableDataLoaderState(worker_states=[_decoded(content)], next_worker_id=0, micro_batch_size=None)


def is_inside_epoch(state: SavableDataLoaderState) -> bool:
    """Whether some sample of the epoch has not been drawn yet.

    Behind the last one, Energon's state is that of the beginning of another epoch, while its buffers still
    hold samples of this one: a loader restored from it would mix the two.
    """
    counts = list(_found(state.worker_states, "_epoch_count"))
    return bool(counts) and all(count == 0 for count in counts)


def _found(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _found(item, key)


def _encoded(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, FlexState):
        return {"flex": {key: _encoded(item) for key, item in value.items()}}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": b64encode(zlib.compress(value)).decode()}
    if isinstance(value, SliceState):
        return {"slice": [value.index, value.current]}
    raise TypeError(f"a state of Energon with a {type(value).__name__} in it")


def _decoded(content: Any) -> Any:
    if isinstance(content, PLAIN):
        return content
    if isinstance(content, list):
        return [_decoded(item) for item in content]
    if isinstance(content, dict) and len(content) == 1:
        ((kind, value),) = content.items()
        if kind == "flex":
            return FlexState({key: _decoded(item) for key, item in value.items()})
        if kind == "tuple":
            return tuple(_decoded(item) for item in value)
        if kind == "bytes":
            return zlib.decompress(b64decode(value))
        if kind == "slice":
            index, current = value
            return SliceState(index=index, current=current)
    raise TypeError("no state of Energon")
