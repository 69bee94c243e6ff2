"""Batch-size ramps, schedules and logging: what they become, and the words for what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankloom.config import resolve
from rankloom.errors import UserError

Mappings = dict[str, dict[str, Any]]
Refusal = Callable[..., str]
FOUR_LANES = (
    "(4 lanes = 4 / (1 x 1 x 1): cluster.world_size / (pipeline x runtime context x tensor parallel size)) "
    "(train section of run.yaml)"
)


def resolved(**sections: dict[str, Any]) -> Any:
    base: Mappings = {"train": {"global_batch_size": 16, "max_steps": 50}, "cluster": {"world_size": 4}}
    return resolve({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


@pytest.mark.parametrize("spelling", [[4, 4, 100], (4, 4, 100), ["4", 4, 1e2]])
def test_a_ramp_and_the_end_of_its_schedule(spelling: object) -> None:
    found = resolved(train={"rampup_batch_size": spelling})
    assert found.train.rampup_batch_size == (4, 4, 100)
    assert found.schedule.decay_samples == 9 * 4 + 4 * 8 + 3 * 12 + 34 * 16
    assert resolve(found.to_mapping()).train.rampup_batch_size == (4, 4, 100)


@pytest.mark.parametrize(
    ("rampup", "message"),
    [
        (
            [2, 2, 100],
            "train.rampup_batch_size [2, 2, 100] comes to 2 rows, which is not a multiple of 4 = "
            "train.micro_batch_size 1 x 4 lanes; its first size and its increment have to be: try [4, 4, "
            "100] " + FOUR_LANES,
        ),
        (
            [4, 3, 100],
            "train.rampup_batch_size [4, 3, 100] comes to 7 rows, which is not a multiple of 4 = "
            "train.micro_batch_size 1 x 4 lanes; its first size and its increment have to be: try [4, 4, "
            "100] " + FOUR_LANES,
        ),
        (
            [16, 4, 100],
            "train.rampup_batch_size [16, 4, 100]: its first size 16 is not smaller than "
            "train.global_batch_size "
            "16; set it to null, or begin with less (train section of run.yaml)",
        ),
        (
            [4, 5, 100],
            "train.rampup_batch_size [4, 5, 100]: train.global_batch_size 16 - 4 = 12 is not a multiple of "
            "the "
            "increment 5; try 4 or 6 (train section of run.yaml)",
        ),
        (
            [4, 4],
            "train.rampup_batch_size must be a list of 3 integers of at least 1: the first batch size, what "
            "is "
            "added to it, and the samples, or null, not [4, 4] (train section of run.yaml)",
        ),
    ],
)
def test_ramps_that_cannot_be_meant(refusal: Refusal, rampup: list[int], message: str) -> None:
    changes = {"train": {"global_batch_size": 16, "rampup_batch_size": rampup}, "cluster": {"world_size": 4}}
    assert refusal(changes) == message


def test_no_smaller_batch_divides(refusal: Refusal) -> None:
    changes = {
        "train": {"global_batch_size": 4, "rampup_batch_size": [2, 2, 9]},
        "cluster": {"world_size": 4},
    }
    assert "its first size and its increment have to be: set it to null" in refusal(changes)


def test_the_unit_of_a_schedule() -> None:
    assert resolved().schedule.unit == "samples"
    assert resolved().schedule.parts == (0, 800, None)
    tokens = resolved(schedule={"warmup_tokens": 100, "decay": "wsd", "wsd_decay_tokens": 50}).schedule
    assert (tokens.unit, tokens.parts, tokens.decay_samples) == ("tokens", (100, None, 50), None)
    assert resolved(schedule={"decay_tokens": 900}).schedule.parts == (0, 900, None)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            {"decay": "wsd"},
            "schedule.decay wsd needs schedule.wsd_decay_samples: how many samples, the last ones of the "
            "schedule, "
            "the decay takes",
        ),
        (
            {"decay": "wsd", "decay_tokens": 100},
            "schedule.decay wsd needs schedule.wsd_decay_tokens: how many tokens, the last ones of the "
            "schedule, "
            "the decay takes",
        ),
        (
            {"wsd_decay_samples": 10},
            "schedule.wsd_decay_samples 10 belongs to schedule.decay wsd, and that is cosine; set one of "
            "them so "
            "that they agree",
        ),
        (
            {"warmup_samples": 8, "decay_tokens": 100},
            "schedule.warmup_samples 8 and schedule.decay_tokens 100: a schedule counts samples or tokens, "
            "not "
            "both; keep one kind",
        ),
        (
            {"warmup_tokens": 10, "decay_tokens": 5},
            "schedule.warmup_tokens 10 is larger than schedule.decay_tokens 5: the schedule would end before "
            "its "
            "warm-up; decay_tokens counts from the first token",
        ),
        (
            {"decay": "wsd", "warmup_samples": 10, "decay_samples": 50, "wsd_decay_samples": 45},
            "schedule.warmup_samples 10 + schedule.wsd_decay_samples 45 is larger than "
            "schedule.decay_samples 50: "
            "the last 45 of them, in which wsd decays, would begin in the warm-up; try "
            "schedule.wsd_decay_samples 40",
        ),
    ],
)
def test_schedules_that_cannot_be_meant(refusal: Refusal, schedule: dict[str, Any], message: str) -> None:
    assert refusal({"schedule": schedule}) == f"{message} (schedule section of run.yaml)"


def test_a_decay_longer_than_the_run_is_noted() -> None:
    assert resolved(schedule={"decay": "wsd", "wsd_decay_samples": 700, "warmup_samples": 200}).notes == (
        "schedule.wsd_decay_samples 700 is more than the 600 samples of the schedule after its warm-up: the "
        "learning rate decays in all of them",
    )
    assert resolved(schedule={"decay": "wsd", "wsd_decay_samples": 600, "warmup_samples": 200}).notes == ()


def test_a_long_warm_up_knows_the_ramp() -> None:
    notes = resolved(train={"rampup_batch_size": [4, 4, 100]}, schedule={"warmup_samples": 700}).notes
    assert notes == (
        "schedule.warmup_samples 700 is longer than the run's 648 samples: the learning rate never reaches "
        "optimizer.lr",
    )


@pytest.mark.parametrize("value", [True, False, "first_fit_decreasing", "greedy", "none"])
def test_ways_of_packing(value: object) -> None:
    assert resolved(data={"packing": value}).data.packing == value


def test_a_run_of_weights_and_biases() -> None:
    found = resolved(logging={"wandb": {"project": "looms"}})
    assert found.logging.wandb.model_dump() == {"project": "looms", "name": None, "mode": "offline"}
    assert resolve(found.to_mapping()).logging == found.logging


@pytest.mark.parametrize(
    "value", ["looms", {"name": "x"}, {"project": "x", "mode": "on"}, {"project": "x", "a": 1}]
)
def test_what_is_no_run_of_weights_and_biases(value: object) -> None:
    with pytest.raises(UserError) as caught:
        resolved(logging={"wandb": value})
    assert str(caught.value).startswith(
        'logging.wandb must be a mapping with a "project", and maybe a "name" and a "mode" (offline or '
        "online), or "
        "null, not "
    )


@pytest.mark.parametrize(
    ("rampup", "message"),
    [
        (
            [2**29, 2**30, 7],
            "train.rampup_batch_size [536870912, 1073741824, 7]: train.global_batch_size 2147483644 - "
            "536870912 = 1610612732 is not a multiple of the increment 1073741824; "
            "try 805306366 or 1610612732",
        ),
        (
            [4, 4, 7],
            "train.rampup_batch_size [4, 4, 7]: from 4 to 2147483644 there are 536870911 sizes, and at "
            "most 65536 may be; try the increment 32770",
        ),
        (
            [4, 2147483640 // 10, 7],  # by 214748364 rows: 4, 214748368, ...
            "",
        ),
        (
            [2, 2147483642 // 2, 7],
            "train.rampup_batch_size [2, 1073741821, 7] comes to 2 rows, which is not a multiple of 4 = "
            "train.micro_batch_size 1 x 4 lanes; its first size and its increment have to be: try [4, "
            "1073741820, 7] (4 lanes = 4 / (1 x 1 x 1): cluster.world_size / (pipeline x runtime context x "
            "tensor parallel size))",
        ),
    ],
)
def test_huge_batches_are_judged_at_once(refusal: Refusal, rampup: list[int], message: str) -> None:
    changes = {
        "train": {"global_batch_size": 2**31 - 4, "rampup_batch_size": rampup, "max_steps": 10**9},
        "cluster": {"world_size": 4},
    }
    if message:
        assert refusal(changes).startswith(message)
    else:
        assert resolved(**changes).train.rampup_batch_size == tuple(rampup)


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch_size": 2**31},
        {"micro_batch_size": 2**31},
        {"eval_batch_size": 2**31},
    ],
)
def test_batches_have_a_limit(refusal: Refusal, changes: dict[str, int]) -> None:
    ((key, _),) = changes.items()
    null = ", or null" if key == "eval_batch_size" else ""
    assert refusal({"train": changes}) == (
        f"train.{key} must be an integer from 1 to 2147483647{null}, not 2147483648 "
        "(train section of run.yaml)"
    )
