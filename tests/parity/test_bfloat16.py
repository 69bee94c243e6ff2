"""bfloat16: as close to plain transformers in bfloat16, and to fp32, as 8 bits of mantissa allow.

One rounding is 2^-9 = 2e-3 of a value. Where the sums are cut differs between layouts (tokens of a context
rank, rows of a microbatch, heads of a TP rank), so roundings do too, and layouts are no closer to each other
than to another program. The loss averages over hundreds of tokens; final weights are rounded themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parity.compare import differences
from tests.parity.layouts import Layout, layout
from tests.parity.problems import Problem, from_seed
from tests.parity.reference import Trajectory

Trained = Callable[[Problem, Layout], Trajectory]

HALF = {"model": {"dtype": "bfloat16"}}
LAYOUTS = (
    pytest.param(layout("1", rows=2), marks=pytest.mark.long),
    layout("4 W4 Q2"),
    pytest.param(layout("4 TP2 W4 Q4", rows=4), marks=pytest.mark.long),
    layout("8 W4 Q2 CP2", rows=2),
)


def rounded(trajectory: Trajectory) -> Trajectory:
    return Trajectory(trajectory.rows, {name: w.bfloat16() for name, w in trajectory.weights.items()})


@pytest.mark.parametrize("where", LAYOUTS, ids=str)
def test_layout(
    trained: Trained, references: Any, tmp_path: Path, record_property: Any, where: Layout
) -> None:
    problem, full = from_seed("llama_bfloat16", sections=HALF), from_seed("llama_seeded")
    got = trained(problem, where)
    same = differences(got, references.of(problem, tmp_path / "model"))
    record_property("bfloat16", str(same))
    assert same.loss <= 4e-4, same
    assert same.grad_norm <= 5e-3, same
    assert same.weight <= 1e-2, same
    fp32 = differences(got, rounded(references.of(full, tmp_path / "model")))
    record_property("float32", str(fp32))
    assert fp32.loss <= 1e-3, fp32
    assert fp32.grad_norm <= 1e-2, fp32
    assert fp32.weight <= 1e-2, fp32


def test_updates_smaller_than_a_rounding_add_up(trained: Trained, references: Any, tmp_path: Path) -> None:
    """Weights near 0.08, whose neighbours are 5e-4 away, move in steps of 1e-4 because of their masters."""
    small = {
        "optimizer": {"lr": 1e-4, "clip_grad": 2.2},
        "schedule": {"decay": "constant", "warmup_samples": 0},
    }
    problem = from_seed("llama_bfloat16_small_steps", sections={**HALF, **small})
    got = trained(problem, layout("4 W4 Q2"))
    want = references.of(problem, tmp_path / "model")
    for name, weight in want.weights.items():
        moved = weight.float() - want.start[name].float()
        assert (got.weights[name].float() - weight.float()).norm() <= 0.15 * moved.norm(), name
