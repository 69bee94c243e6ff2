"""A config that resolves, and the message of one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rankloom.config import resolve
from rankloom.errors import UserError

Mappings = dict[str, dict[str, Any]]


@pytest.fixture
def base() -> Mappings:
    """One rank, four rows a step, three steps."""
    return {
        "cluster": {"world_size": 1},
        "train": {"global_batch_size": 4, "max_steps": 3},
    }


@pytest.fixture
def refusal(base: Mappings) -> Callable[..., str]:
    """``refusal({"train": {"epochs": 2}}, cli={...})``: the message, the sections laid over ``base``."""

    def message(changes: Mapping[str, Any], *, origin: str = "run.yaml", **layers: Any) -> str:
        merged: dict[str, Any] = dict(base)
        for name, body in changes.items():
            merged[name] = {**base.get(name, {}), **body} if isinstance(body, dict) else body
        with pytest.raises(UserError) as refused:
            resolve(merged, origin=origin, **layers)
        return str(refused.value)

    return message
