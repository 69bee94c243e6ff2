"""The demo on eight actors, against the local engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.config import load
from rankloom.driver.connection import RayCluster
from rankloom.driver.engine import run_ray
from rankloom.train import run_local
from rankloom.train.reporting import SilentReporter
from tests.pool import RankPool

pytestmark = pytest.mark.long

STEPS = 30


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_losses_are_those_of_the_local_engine(
    cluster: RayCluster, rank_pool: RankPool, tmp_path: Path
) -> None:
    """And the ranks seldom wait for the controller."""

    def config(name: str) -> Any:
        changes = {"checkpoint.dir": str(tmp_path / name), "train.max_steps": STEPS}
        return load("examples/demo/demo.yaml", cli=changes)

    summary = run_ray(config("ray"), reporter=SilentReporter())
    run_local(config("local"), reporter=SilentReporter())
    found, wanted = rows(tmp_path / "ray"), rows(tmp_path / "local")
    assert len(found) == len(wanted) == STEPS
    for row, other in zip(found, wanted, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert row["consumed_tokens"] == other["consumed_tokens"]
    print(f"dispatch {summary['dispatch_s']:.3f} s of {summary['time_s']:.3f} s")
    assert summary["dispatch_s"] < 0.05 * summary["time_s"]  # type: ignore[operator]
