"""What a metrics file is: a row a step, so that nothing else is ever written over or cut.

Here, below the code that writes it, since it must be known before any rank starts.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from rankloom.errors import UserError

__all__ = ["METRICS_KEYS", "end_of_rows", "refuse_other_content"]

_FIRST_KEYS = (  # what makes a line a metrics row, of an earlier version too
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
METRICS_KEYS = (
    *_FIRST_KEYS,
    "epoch",
    "global_batch_size",
    "padding",
    "lane_imbalance",
    "lane_token_imbalance",
    "loader_wait_s",
    "eval_loss",
    "eval_tokens",
)

_ROW_START = b'{"step": '


def refuse_other_content(path: Path) -> None:
    """Raises UserError unless ``path`` is missing, empty, or a file of metrics rows; a last line that was cut
    short counts as one."""
    end_of_rows(path, through_step=0)


def end_of_rows(path: Path, *, through_step: int) -> int:
    """Bytes of the rows up to a step; they are the first in the file. Raises UserError for other content."""
    if not path.exists() or path.is_char_device():  # /dev/null keeps nothing
        return 0
    if not path.is_file():
        raise UserError(f"{path} is no file; a metrics file cannot be written there")
    kept, still = 0, True
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # A crash of the machine may leave zeros in the place of the last rows.
            step = _step_of(line.rstrip(b"\0") if number > 1 else line)
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
    if not isinstance(row, dict) or not set(_FIRST_KEYS) <= set(row) or not isinstance(row["step"], int):
        return None
    return row["step"]
