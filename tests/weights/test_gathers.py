"""Gathered weights: when they exist, how many at a time, and that they are never older than the last step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelPlan, ModelSpec
from rankloom.plan.gathers import KEEP, gathers_of, training_visits
from rankloom.weights import WeightUnit
from tests.runtime.models import FAMILIES, Recipe, random_rows, reference, tensor_rows
from tests.runtime.sharded import build, step, train
from tests.weights.memory import LiveBytes
from tests.weights.units import CP, TP, Q, W, communicator

LENGTH = 16


def recipe(family: str = "llama", *, num_steps: int = 3, num_rows: int = 8, **changes: Any) -> Recipe:
    steps = tuple(tuple(random_rows(num_rows, length=LENGTH, seed=s)) for s in range(num_steps))
    return Recipe(family=family, steps=steps, length=LENGTH, **changes)


class Watch:
    """Gathers launched in this process, what they hold, and how many units are there at each use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, units: list[WeightUnit]) -> None:
        self.launched: list[str] = []
        self.refs: list[StorageWeakRef] = []
        self.most = 0
        launch, weight = WeightUnit.launch_gather, WeightUnit.weight

        def launch_gather(unit: WeightUnit) -> None:
            before = unit._gathered
            launch(unit)
            if unit._gathered is not before:
                self.launched.append(unit.name)
                self.refs += [StorageWeakRef(t.untyped_storage()) for t in unit._gathered.values()]

        def use(unit: WeightUnit, name: str) -> torch.Tensor:
            value = weight(unit, name)
            self.most = max(self.most, sum(bool(u._gathered) for u in units))
            return value

        monkeypatch.setattr(WeightUnit, "launch_gather", launch_gather)
        monkeypatch.setattr(WeightUnit, "weight", use)

    @property
    def num_alive(self) -> int:
        return sum(not ref.expired() for ref in self.refs)


def watched_microbatches(
    rank: int, world_size: int, settings: dict[str, Any], r: Recipe
) -> list[tuple[list[str], int, int]]:
    """(gathers launched, gathered tensors alive after it, most units gathered at once) of each microbatch."""
    layout = communicator(rank, world_size, settings).layout
    model, optimizer = build(layout, r, rank)
    seen = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch = Watch(monkeypatch, model.units)
        for rows in r.steps:
            for m in range(2):
                watch.launched, watch.most = [], 0
                model.forward_backward(tensor_rows(rows[m : m + 1], r.length), first=m == 0, last=m == 1)
                seen.append((watch.launched, watch.num_alive, watch.most))
            optimizer.finish_reductions()
            optimizer.step(lr=0.1, num_tokens=1, norm=1.0)
        watch.launched, watch.most = [], 0
        model.evaluate(tensor_rows(rows[:1], r.length))
        seen.append((watch.launched, watch.num_alive, watch.most))
    return seen


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gathers_follow_the_plan_and_nothing_outlives_a_microbatch(
    ranks: Any, family: str, checkpointing: bool
) -> None:
    r = recipe(family, num_steps=2, gradient_checkpointing=checkpointing)
    layers = ["model.layers.0", "model.layers.1"]
    head = "model.embed_tokens" if family == "qwen3" else "lm_head"
    # Layer 1 is used again right after the head, and so is kept; a tied embedding of so small a model too.
    planned = ["model.embed_tokens", *layers, *([] if family == "qwen3" else [head]), "model.layers.0"]
    for rank in ranks(4, watched_microbatches, {W: 4}, r):
        *training, evaluation = rank
        assert len(training) == 4
        for launched, alive, most in training:
            assert launched == planned
            assert alive == 0
            assert most <= 1 + KEEP
        assert evaluation[0] == ["model.embed_tokens", *layers, *([] if family == "qwen3" else [head])]
        assert evaluation[1] == 0


def test_the_plan_counts_the_same_gathers() -> None:
    layout = GTPParallelLayout.resolve(world_size=4, tensor_parallel_num_weight_shards=4)
    plan = ModelPlan.build(ModelSpec.from_config({**FAMILIES["llama"], "num_hidden_layers": 5}), layout)
    gathers = list(gathers_of(training_visits(plan)))
    names = [f"model.layers.{i}" for i in range(5)]
    assert gathers == ["model.embed_tokens", *names, "lm_head", *names[3::-1]]


@pytest.mark.parametrize("settings", [{}, {CP: 2}, {TP: 2}], ids=str)
def test_without_remat_nothing_is_gathered_and_no_weight_copied(ranks: Any, settings: dict[str, Any]) -> None:
    for same_storage, gathers, sent in ranks(4, used_weights, settings, recipe(num_steps=1)):
        assert same_storage == {True}
        assert gathers == []
        assert sent == 0


def used_weights(rank: int, world_size: int, settings: dict[str, Any], r: Recipe) -> Any:
    model, _ = build(communicator(rank, world_size, settings).layout, r, rank)
    same = set()
    weight = WeightUnit.weight

    def use(unit: WeightUnit, name: str) -> torch.Tensor:
        value = weight(unit, name)
        same.add(value.data_ptr() == unit.shard(name).data_ptr())
        return value

    with pytest.MonkeyPatch.context() as monkeypatch:
        watch = Watch(monkeypatch, model.units)
        monkeypatch.setattr(WeightUnit, "weight", use)
        model.forward_backward(tensor_rows(r.steps[0][:1], r.length), first=True, last=True)
    return same, watch.launched, model.comm["gtp_remat"].bytes_sent


def test_weights_are_never_older_than_the_last_step(ranks: Any) -> None:
    """A learning rate so large that one stale weight shows; recomputed activations see the same weights."""
    r = recipe(num_steps=4, lr=0.05)
    want = reference(r)
    plain = ranks(4, train, {W: 2}, r)[0]
    recomputed = ranks(4, train, {W: 2}, recipe(num_steps=4, lr=0.05, gradient_checkpointing=True))[0]
    assert abs(want.losses[0] - want.losses[-1]) > 0.05
    assert plain.losses == pytest.approx(want.losses, rel=1e-5)
    assert recomputed.losses == plain.losses
    assert recomputed.norms == plain.norms
    for name, value in plain.weights.items():
        assert torch.equal(recomputed.weights[name], value), name


def interrupted(rank: int, world_size: int, settings: dict[str, Any], r: Recipe) -> list[float]:
    """Training losses with evaluations between all microbatches, and a wrong order of visits at first."""
    layout = communicator(rank, world_size, settings).layout
    model, optimizer = build(layout, r, rank)
    units = model.units
    model.schedule._traces["train"] = [*units[::-1], units[0]]
    forward_backward = model.forward_backward
    evaluated = []

    def with_evaluation(rows: Any, *, first: bool, last: bool) -> Any:
        evaluated.append(model.evaluate(rows)[0].item())
        out = forward_backward(rows, first=first, last=last)
        assert evaluated[-1] == pytest.approx(out[0].item(), rel=1e-6)
        model.schedule.begin("evaluate")
        with torch.no_grad():
            once, again = model._hidden(rows)[1], model._hidden(rows)[1]
        model.schedule.end()
        assert torch.equal(once, again)
        return out

    model.forward_backward = with_evaluation  # type: ignore[method-assign]
    return [step(model, optimizer, rows, r)[0] for rows in r.steps]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("settings", [{W: 4, Q: 2}, {TP: 2, W: 4}], ids=str)
def test_evaluation_in_between_and_unforeseen_visits_change_nothing(
    ranks: Any, settings: dict[str, Any], family: str
) -> None:
    r = recipe(family, num_steps=2, num_rows=4)
    want = reference(r).losses
    for losses in ranks(4, interrupted, settings, r):
        assert losses == pytest.approx(want, rel=1e-5)


def two_models(rank: int, world_size: int, r: Recipe, together: bool) -> tuple[list[Any], list[Any]]:
    """Steps of two models with two layouts, alternately or one model after the other."""
    layouts = [communicator(rank, world_size, s).layout for s in ({W: 4}, {TP: 2, W: 2, CP: 2})]
    if together:
        a, b = (build(layout, r, rank) for layout in layouts)
        pairs = [(step(*a, rows, r), step(*b, rows, r)) for rows in r.steps]
        return [one for one, _ in pairs], [other for _, other in pairs]
    a = build(layouts[0], r, rank)
    first = [step(*a, rows, r) for rows in r.steps]
    b = build(layouts[1], r, rank)
    return first, [step(*b, rows, r) for rows in r.steps]


def test_two_models_in_one_process_train_as_if_alone(ranks: Any) -> None:
    r = recipe("llama_biases_tied", num_steps=2, num_rows=4)
    alone = ranks(4, two_models, r, False)
    assert ranks(4, two_models, r, True) == alone
    want = reference(r).losses
    for first, second in alone:
        assert [loss for loss, _ in first] == pytest.approx(want, rel=1e-5)
        assert [loss for loss, _ in second] == pytest.approx(want, rel=1e-5)


def peaks(rank: int, world_size: int, settings: dict[str, Any], r: Recipe) -> list[int]:
    """Most bytes alive in a step of 2, 3 and 6 microbatches."""
    model, _ = build(communicator(rank, world_size, settings).layout, r, rank)
    rows = tensor_rows(r.steps[0][:1], r.length)
    found = []
    for count in (2, 2, 3, 6):
        with LiveBytes() as live:
            for m in range(count):
                model.forward_backward(rows, first=m == 0, last=m == count - 1)
        found.append(live.peak)
    return found[1:]


@pytest.mark.parametrize(
    "settings", [pytest.param({W: 4}, marks=pytest.mark.long), {TP: 2, W: 4}, {}], ids=str
)
def test_memory_does_not_grow_with_the_number_of_microbatches(ranks: Any, settings: dict[str, Any]) -> None:
    for few, more, most in ranks(4, peaks, settings, recipe(num_steps=1)):
        assert few == more == most > 0
