"""A save in one layout loads in any other: moments, masters and weights bit-equal; training goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankloom.checkpoint import find_latest
from tests.checkpoint.runs import LAYOUTS, Outcome, load_and_go_on, recipe, save_and_go_on


def saved(ranks: Any, layout: str, r: Any, directory: Path) -> Outcome:
    world, settings = LAYOUTS[layout]
    outcome: Outcome = ranks(world, save_and_go_on, settings, r, directory, timeout_s=120)[0]
    return outcome


def loaded(ranks: Any, layout: str, r: Any, directory: Path) -> Outcome:
    world, settings = LAYOUTS[layout]
    outcome: Outcome = ranks(world, load_and_go_on, settings, r, find_latest(directory), timeout_s=120)[0]
    return outcome


def assert_continues(before: Outcome, after: Outcome) -> None:
    assert after.tensors.keys() == before.tensors.keys()
    for name, tensor in before.tensors.items():
        assert torch.equal(after.tensors[name], tensor), name
    assert after.losses == pytest.approx(before.losses[3:], rel=1e-5)


PAIRS = [
    pytest.param("8 TP2 W4 Q4 CP2 other-order", "1", marks=pytest.mark.long),
    ("1", "4 TP2 W4"),
    ("4 TP2 W4", "3 W3 Q3"),
    pytest.param("3 W3 Q3", "4 W2 CP2", marks=pytest.mark.long),
    ("4 W2 CP2", "2 TP2"),
]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda x: x.replace(" ", "_"))
def test_a_save_loads_in_another_layout(ranks: Any, tmp_path: Path, source: str, target: str) -> None:
    r = recipe("qwen3")
    before = saved(ranks, source, r, tmp_path)
    after = loaded(ranks, target, r, tmp_path)
    assert_continues(before, after)
    assert after.loaded is not None
    assert (after.loaded.step, after.loaded.state, after.loaded.same_layout) == (
        3,
        {"consumed_samples": 12},
        False,
    )
    assert len(after.notes) == 1
    assert after.notes[0].startswith("random states: the checkpoint was saved on ")
    assert after.notes[0].endswith("every rank starts a new stream from seed 0, step 3 and its rank")


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen3", "llama", "llama_biases_tied"])
@pytest.mark.parametrize("source", LAYOUTS, ids=lambda x: x.replace(" ", "_"))
def test_a_save_loads_in_every_layout(ranks: Any, tmp_path: Path, source: str, family: str) -> None:
    r = recipe(family)
    before = saved(ranks, source, r, tmp_path)
    for target in LAYOUTS:
        assert_continues(before, loaded(ranks, target, r, tmp_path))


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        pytest.param("llama", "4 TP2 W4", marks=pytest.mark.long),
        pytest.param("qwen3", "4 W2 CP2", marks=pytest.mark.long),
        ("llama_biases_tied", "3 W3 Q3"),
    ],
)
def test_three_steps_and_three_more_are_six_in_the_same_layout(
    ranks: Any, tmp_path: Path, family: str, layout: str
) -> None:
    r = recipe(family)
    before, after = saved(ranks, layout, r, tmp_path), loaded(ranks, layout, r, tmp_path)
    assert after.losses == before.losses[3:]
    assert after.norms == before.norms[3:]
    assert_continues(before, after)
    assert after.notes == ()


@pytest.mark.parametrize(("there", "here"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_another_dtype_of_the_weights_takes_the_masters(
    ranks: Any, tmp_path: Path, there: str, here: str
) -> None:
    r = recipe("llama", dtype=there)
    before = saved(ranks, "4 TP2 W4", r, tmp_path)
    after = loaded(ranks, "4 W4", replace(r, dtype=here), tmp_path)
    for name, tensor in before.tensors.items():
        kind, parameter = name.split("/")
        master = before.tensors[f"master/{parameter}"]
        expected = master.to(getattr(torch, here)) if kind == "weight" else tensor
        assert torch.equal(after.tensors[name], expected), name
    assert after.losses == pytest.approx(before.losses[3:], rel=2e-2)
    assert after.notes[-1] == f"weights were saved in {there} and are kept in torch.{here} now"


def test_bfloat16_weights_come_back_with_their_masters(ranks: Any, tmp_path: Path) -> None:
    r = recipe("qwen3", dtype="bfloat16")
    before = saved(ranks, "4 W2 CP2", r, tmp_path)
    assert before.tensors["weight/model.norm.weight"].dtype is torch.bfloat16
    same = loaded(ranks, "4 W2 CP2", r, tmp_path)
    assert same.losses == before.losses[3:]
    other = loaded(ranks, "4 TP2 W4", r, tmp_path)
    for name, tensor in before.tensors.items():
        assert torch.equal(other.tensors[name], tensor), name
        assert torch.equal(same.tensors[name], tensor), name


@pytest.mark.long
def test_a_resume_of_a_resume(ranks: Any, tmp_path: Path) -> None:
    """Two steps in one layout, two in another, two in a third; then all six at once in the first."""
    r = recipe("qwen3")
    world, settings = LAYOUTS["4 W4"]
    whole = ranks(world, save_and_go_on, settings, r, tmp_path / "whole", timeout_s=120)[0]
    first = replace(r, steps=r.steps[:2])
    ranks(world, save_and_go_on, settings, first, tmp_path / "a", 2, timeout_s=120)
    world, settings = LAYOUTS["3 W3 Q3"]
    second = ranks(world, load_then_save, settings, r, tmp_path / "a", 2, 4, timeout_s=120)[0]
    world, settings = LAYOUTS["2 TP2"]
    third = ranks(world, load_and_go_on, settings, r, find_latest(tmp_path / "a"), 4, timeout_s=120)[0]
    assert second + third.losses == pytest.approx(whole.losses[2:], rel=1e-5)
    assert find_latest(tmp_path / "a") == tmp_path / "a" / "step-00000004"


def load_then_save(
    rank: int, world_size: int, settings: Any, r: Any, directory: Path, first: int, last: int
) -> list[float]:
    from rankloom.checkpoint import load, save
    from tests.checkpoint.runs import started, take

    model, optimizer = started(rank, world_size, settings, r)
    load(model, optimizer, find_latest(directory))
    steps = take(model, optimizer, r, first, last)
    save(model, optimizer, directory, step=last, state={})
    return [s[0] for s in steps]
