"""One reference a problem, however many layouts are compared with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rankloom.config import resolve
from tests.parity.compare import Differences, differences
from tests.parity.layouts import Layout
from tests.parity.problems import Problem, prepare_folder
from tests.parity.reference import Trajectory, reference
from tests.runtime.runs import run

__all__ = ["References"]


class References:
    """Folders and reference trajectories of the problems met so far."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trajectories: dict[str, Trajectory] = {}

    def folder(self, problem: Problem) -> Path:
        folder = self._root / problem.name
        if not folder.exists():
            folder.mkdir()
            prepare_folder(problem, folder)
        return folder

    def of(self, problem: Problem, tokenizer_folder: Path) -> Trajectory:
        if problem.name not in self._trajectories:
            config = problem.config(self.folder(problem), parallel={}, world=1, rows=1)
            found = reference(resolve(config), tokenizer_folder)
            _refuse_clip_of_all_or_none(found, config["optimizer"]["clip_grad"])
            self._trajectories[problem.name] = found
        return self._trajectories[problem.name]


def _refuse_clip_of_all_or_none(trajectory: Trajectory, clip: float) -> None:
    """A table where every step is clipped, or none, would not see a norm that is wrong by a factor."""
    norms = [row["grad_norm"] for row in trajectory.rows]
    assert clip == 0 or min(norms) < clip < max(norms), norms


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("parity"))


@pytest.fixture
def trained(ranks: Any, references: References, tmp_path: Path) -> Callable[[Problem, Layout], Trajectory]:
    """``trained(problem, layout)``: the metrics of rank 0, equal to all ranks', and the exported weights."""

    def train(problem: Problem, layout: Layout) -> Trajectory:
        folder = references.folder(problem)
        config = problem.config(
            folder, parallel=layout.parallel, world=layout.world, rows=layout.micro_batch_size
        )
        config["checkpoint"] = {"dir": str(tmp_path)}
        rows, *others = ranks(layout.world, run, config, timeout_s=120)
        for other in others:
            assert [(r["loss"], r["grad_norm"]) for r in other] == [(r["loss"], r["grad_norm"]) for r in rows]
        return Trajectory(rows, load_file(tmp_path / "model" / "model.safetensors"))

    return train


@pytest.fixture
def compared(
    trained: Any, references: References, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Callable[[Problem, Layout], Differences]:
    """``compared(problem, layout)``: how far a layout is from the reference; kept with the test's result."""

    def compare(problem: Problem, layout: Layout) -> Differences:
        got = trained(problem, layout)
        found = differences(got, references.of(problem, tmp_path / "model"))
        for key in ("loss", "grad_norm", "weight", "worst_parameter"):
            record_property(key, getattr(found, key))
        return found

    return compare
