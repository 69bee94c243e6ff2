"""What travels instead of a batch: a lane's owner leaves the rows of a step in a store, and tells of them.

The envelope is small whatever the size of the batch, so a controller can hold one for each lane.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rankloom.errors import RunError

__all__ = ["Envelope", "refuse_wrong_lanes"]


@dataclass(frozen=True)
class Envelope:
    """The rows that one lane trains on in a step.

    Attributes:
        lane: of the layout.
        step: from 1.
        num_microbatches: of the step.
        num_tokens: that the rows hold, without padding.
        num_bytes: of the arrays in the store.
        batch: a reference to them; what it is, is the store's business.
    """

    lane: int
    step: int
    num_microbatches: int
    num_tokens: int
    num_bytes: int
    batch: Any
    _packed_rows: bytes

    @classmethod
    def of(cls, rows: Sequence[int], **facts: Any) -> Self:
        """With the numbers of all its rows, microbatch after microbatch, -1 for an empty filler."""
        steps = np.diff(np.array(rows, dtype=np.int64), prepend=0)
        return cls(**facts, _packed_rows=zlib.compress(steps.tobytes()))

    @property
    def rows(self) -> list[int]:
        """Numbers of the rows in the run: its samples. They mostly follow a pattern, and travel packed."""
        steps = np.frombuffer(zlib.decompress(self._packed_rows), dtype=np.int64)
        return [int(row) for row in np.cumsum(steps)]


def refuse_wrong_lanes(envelopes: Sequence[Envelope], *, step: int, num_lanes: int) -> None:
    """Raises RunError unless these are of exactly the lanes 0, 1, ... of that step, in order, and no two have
    a row in common."""
    lanes, steps = [envelope.lane for envelope in envelopes], [envelope.step for envelope in envelopes]
    if lanes != list(range(num_lanes)):
        raise RunError(
            f"step {step} needs the rows of lanes 0 to {num_lanes - 1}, in that order; the owners of lanes "
            f"sent those of {_shown(lanes)}"
        )
    if wrong := [f"lane {lane} of step {other}" for lane, other in enumerate(steps) if other != step]:
        raise RunError(f"step {step} was given rows of other steps: {_shown(wrong)}")
    owner: dict[int, int] = {}
    for envelope in envelopes:
        for row in envelope.rows:
            if row >= 0 and (other := owner.setdefault(row, envelope.lane)) != envelope.lane:
                raise RunError(f"step {step}: lanes {other} and {envelope.lane} were both given row {row}")


def _shown(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:8])) + (f" and {len(items) - 8} more" if len(items) > 8 else "")
