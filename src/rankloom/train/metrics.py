"""The metrics file: one JSON object per optimizer step, written by rank 0, complete up to the last step."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rankloom.errors import RunError
from rankloom.plan.metrics_rows import METRICS_KEYS, end_of_rows

__all__ = ["METRICS_KEYS", "MetricsFile"]


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

    def sync(self) -> None:
        """Returns once the rows are on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a pipe or /dev/null has no disk
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


def _keep_rows(path: Path, *, through_step: int) -> None:
    end = end_of_rows(path, through_step=through_step)
    if path.is_file() and end < path.stat().st_size:
        os.truncate(path, end)
