"""What is kept of a step whose loss or gradient is not finite: which lanes, which rows, which records."""

from __future__ import annotations

import json
from pathlib import Path

from rankloom.data import Dealer
from rankloom.data.prepare import PreparedData
from rankloom.errors import RunError
from rankloom.train.worker import StepOutcome

__all__ = ["write_report"]


def write_report(
    folder: Path,
    outcome: StepOutcome,
    data: PreparedData,
    *,
    dealer: Dealer,
    step: int,
) -> Path:
    """Writes ``step-N.json`` into ``folder`` and returns its path. Lanes with a loss that is not finite are
    marked; where only the gradient is not, no lane is, since gradients are already summed over lanes."""
    lanes = []
    for lane, dealt in enumerate(dealer.lanes(data.stream.batch(step - 1))):
        lanes.append(
            {
                "lane": lane,
                "loss_is_finite": lane not in outcome.bad_lanes,
                "rows": [
                    {
                        "row": row.row_id,
                        "epoch": row.epoch,
                        "records": [data.dataset.record_name(r) for r in row.records],
                    }
                    for microbatch in dealt
                    for row in microbatch
                    if not row.is_filler
                ],
            }
        )
    report = {"step": step, "loss": repr(outcome.loss), "grad_norm": repr(outcome.grad_norm), "lanes": lanes}
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
