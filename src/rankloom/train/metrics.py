"""The metrics file: one JSON object per optimizer step, written by rank 0, complete up to the last step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rankloom.errors import RunError, UserError

__all__ = ["METRICS_KEYS", "MetricsFile", "refuse_other_content"]

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


_ROW_START = b'{"step": '


class MetricsFile:
    """Appends rows to a JSON Lines file. Rows after ``keep_through_step`` (0: all) are removed at the start.

    A number that is not finite is written as null, since JSON has no other word for it. Raises UserError
    where the file holds anything but metrics, which is then left as it is, and RunError where it cannot be
    written.
    """

    def __init__(self, path: str | Path, *, keep_through_step: int = 0) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _keep_rows(self.path, through_step=keep_through_step)
            self._file = self.path.open("ab", buffering=0)  # a row that did not fit is not tried again
        except OSError as error:
            raise self._not_writable(error) from error

    def write(self, row: Mapping[str, object]) -> None:
        """Write one row, with exactly the keys of ``METRICS_KEYS``."""
        if set(row) != set(METRICS_KEYS):
            raise ValueError(f"a metrics row has the keys {METRICS_KEYS}, not {tuple(row)}")
        line = (json.dumps({key: _finite(row[key]) for key in METRICS_KEYS}) + "\n").encode()
        try:
            while line:  # of a nearly full disk, a part of the line may be accepted
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> RunError:
        return RunError(f"the metrics file {self.path} cannot be written: {error.strerror or error}")

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


def refuse_other_content(path: Path) -> None:
    """Raises UserError unless ``path`` is missing, empty, or a file of metrics rows; a last line that was cut
    short counts as one."""
    _end_of_rows(path, through_step=0)


def _keep_rows(path: Path, *, through_step: int) -> None:
    end = _end_of_rows(path, through_step=through_step)
    if path.is_file() and end < path.stat().st_size:
        os.truncate(path, end)


def _end_of_rows(path: Path, *, through_step: int) -> int:
    """Bytes of the rows up to a step; they are the first in the file. Raises UserError for other content."""
    if not path.exists() or path.is_char_device():  # /dev/null keeps nothing
        return 0
    if not path.is_file():
        raise UserError(f"{path} is no file; a metrics file cannot be written there")
    kept, still = 0, True
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            step = _step_of(line)
            if step is None:
                raise UserError(
                    f"{path} is not a metrics file, and is left as it is: line {number} is no metrics row; "
                    "move it away, or set logging.metrics to another path"
                )
            still = still and step <= through_step
            kept += len(line) if still else 0
    return kept


def _step_of(line: bytes) -> float | None:
    """The step of a row, None for other content. A line cut short by the end of an earlier run counts as
    after everything."""
    if not line.endswith(b"\n"):
        return math.inf if line.startswith(_ROW_START) or _ROW_START.startswith(line) else None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not set(METRICS_KEYS) <= set(row) or not isinstance(row["step"], int):
        return None
    return row["step"]
