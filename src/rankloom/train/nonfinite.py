"""What is kept of a step whose loss or gradient is not finite: which lanes, which rows, which records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankloom.errors import RunError
from rankloom.train.worker import StepOutcome

__all__ = ["not_finite", "write_report"]


def write_report(
    folder: Path,
    outcome: StepOutcome,
    lanes: Sequence[list[dict[str, Any]]],
    *,
    step: int,
) -> Path:
    """Writes ``step-N.json`` into ``folder`` and returns its path. ``lanes``: the rows of each lane, with
    their records. Lanes with a loss that is not finite are marked; where only the gradient is not, no lane
    is, since gradients are already summed over lanes."""
    told = [
        {"lane": lane, "loss_is_finite": lane not in outcome.bad_lanes, "rows": rows}
        for lane, rows in enumerate(lanes)
    ]
    report = {"step": step, "loss": repr(outcome.loss), "grad_norm": repr(outcome.grad_norm), "lanes": told}
    path = folder / f"step-{step}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise RunError(
            f"loss {outcome.loss}, gradient norm {outcome.grad_norm} in step {step}, and the report {path} "
            f"cannot be written: {error.strerror or error}"
        ) from error
    return path


def not_finite(
    folder: Path,
    outcome: StepOutcome,
    lanes: Sequence[list[dict[str, Any]]],
    *,
    step: int,
    writes: bool,
) -> str:
    """What happened in a step, in words; where this rank ``writes``, with the report in ``folder``."""
    if writes:
        write_report(folder, outcome, lanes, step=step)
    bad = ", ".join(map(str, outcome.bad_lanes))
    fault = f"not finite in lanes {bad}" if bad else "no lane's loss is at fault"
    return (
        f"step {step}: loss {outcome.loss}, gradient norm {outcome.grad_norm}; {fault}; nothing was updated; "
        f"the records are in {folder / f'step-{step}.json'}"
    )
