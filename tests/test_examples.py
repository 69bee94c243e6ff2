"""Shipped configs resolve, name a model that can be cut so, and the demo trains and answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rankloom.config import load, refuse_for_training
from rankloom.config.foreign import read_foreign
from rankloom.plan import ModelPlan, ModelSpec
from tests.example_scripts import example_script

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "examples/demo/demo.yaml"
GENERATE = ROOT / "examples/demo/generate.py"
OTHERS = ROOT / "examples/other-programs"
# What the config.json of a folder says that another script of the example makes.
MODEL_FOLDERS = {"runs/smollm2/base": example_script("smollm2/prepare").ARCHITECTURE}
CONFIGS = sorted(path for path in ROOT.glob("examples/**/*.yaml") if path.parent != OTHERS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_config_can_be_trained(path: Path) -> None:
    resolved = load(path)
    refuse_for_training(resolved)
    config = resolved.model.config or MODEL_FOLDERS[str(resolved.model.path)]
    spec = ModelSpec.from_config(config, vocab_size=4096)
    ModelPlan.build(spec, resolved.layout)


@pytest.mark.parametrize(("program", "name"), [("megatron", "megatron.sh"), ("nemo-rl", "nemo_rl.yaml")])
def test_jobs_of_other_programs_are_read_whole(program: str, name: str) -> None:
    job = read_foreign(program, str(OTHERS / name))
    assert job.mapping["cluster"]["world_size"] == 16
    assert [finding.message for finding in job.findings if finding.severity == "error"] == []
    assert job.ignored == ()


def test_the_demo_is_cut_both_ways() -> None:
    layout = load(DEMO).layout
    assert layout.world_size == 8
    assert layout.tensor_parallel_num_weight_shards == 4
    assert layout.batch_parallel_size == 2
    assert layout.runtime_context_parallel_size == 4
    assert layout.num_weight_replicas == 2


def test_generating_needs_no_rankloom() -> None:
    tree = ast.parse(GENERATE.read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert "transformers" in modules
    assert not any(str(name).startswith("rankloom") for name in modules)


def test_a_short_demo_trains_and_answers(tmp_path: Path) -> None:
    options = ("--train.max_steps", "3", "--checkpoint.dir", str(tmp_path))
    trained = _run("-m", "rankloom", "train", str(DEMO), *options)
    assert "trained 3 steps" in trained
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3
    assert "answer" in _run(str(GENERATE), str(tmp_path / "model"), "--max-new-tokens", "4")


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
