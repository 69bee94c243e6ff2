"""The metrics file: one JSON object per optimizer step, written by rank 0, complete up to the last step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["METRICS_KEYS", "MetricsFile"]

METRICS_KEYS = (
    "step",
    "loss",
    "grad_norm",
    "lr",
    "consumed_samples",
    "consumed_chats",
    "consumed_tokens",
    "valid_tokens",
    "step_time_s",
    "tokens_per_second",
    "comm_bytes",
)


class MetricsFile:
    """Appends rows to a JSON Lines file. Rows after ``keep_through_step`` (0: all) are removed at the start.

    A number that is not finite is written as null, since JSON has no other word for it.
    """

    def __init__(self, path: str | Path, *, keep_through_step: int = 0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _keep_rows(self.path, through_step=keep_through_step)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, object]) -> None:
        """Write one row, with exactly the keys of ``METRICS_KEYS``, and flush it."""
        if set(row) != set(METRICS_KEYS):
            raise ValueError(f"a metrics row has the keys {METRICS_KEYS}, not {tuple(row)}")
        ordered = {key: _finite(row[key]) for key in METRICS_KEYS}
        self._file.write(json.dumps(ordered) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _keep_rows(path: Path, *, through_step: int) -> None:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        kept = [line for line in file if _step_of(line) <= through_step]
    shorter = path.with_name(path.name + ".tmp")
    shorter.write_text("".join(kept), encoding="utf-8")
    os.replace(shorter, path)


def _step_of(line: str) -> float:
    """The step of a row; a line cut short by the end of an earlier run counts as after everything."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except ValueError:
        return math.inf
