"""Settings of an Energon data set: what does not go with it, and its virtual lanes."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.config import refuse_for_training, resolve
from rankloom.errors import UserError

MODEL = {"model_type": "llama", "hidden_size": 16}


def refusals(world_size: int = 4, **settings: Any) -> list[str]:
    """Of a run that trains on an Energon data set."""
    base = {
        "model": {"config": MODEL},
        "data": {"source": "energon", "path": "chats.jsonl"},
        "train": {"global_batch_size": 12, "max_steps": 2},
        "cluster": {"world_size": world_size},
    }
    resolved = resolve(base, cli=settings, origin="run.yaml")
    try:
        refuse_for_training(resolved)
    except UserError as error:
        return str(error).splitlines()
    return []


def test_a_run_on_it() -> None:
    assert refusals() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data.path": None},
            "data.source energon: set data.path to a data set made ready with energon prepare (data "
            "section of run.yaml)",
        ),
        (
            {"data.train": "other.jsonl"},
            "data.train and data.source energon are both set; set one of them to null (--data.train)",
        ),
        (
            {"data.source": "chats", "data.train": "other.jsonl"},
            "data.path chats.jsonl is the data set of data.source energon; set that, or data.train (data "
            "section of run.yaml)",
        ),
        (
            {"train.max_steps": None, "train.epochs": 2},
            "train.epochs 2: how many rows an Energon data set has is known once its samples are tokenised "
            "and packed, while the run goes on; set train.max_steps instead (rankloom inspect tells about "
            "how many steps an epoch has) (--train.epochs)",
        ),
        (
            {"data.validation_split": 0.1},
            "data.validation_split 0.1: an Energon data set is not split here; set data.validation to files "
            "of chats (--data.validation_split)",
        ),
        (
            {"data.balance": "work"},
            "data.balance work: a row of an Energon data set is made by the lane that trains on it, and "
            "cannot be dealt to another; set it to none (--data.balance)",
        ),
        (
            {"schedule.warmup_tokens": 100},
            "schedule.warmup_tokens 100: how many tokens a run on an Energon data set has is not known "
            "before; set schedule.decay_tokens too (--schedule.warmup_tokens)",
        ),
    ],
)
def test_what_does_not_go_with_it(settings: dict[str, Any], message: str) -> None:
    assert message in refusals(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule.warmup_tokens": 100, "schedule.decay_tokens": 200},
        {"schedule.warmup_tokens": 100, "schedule.decay": "constant"},
    ],
)
def test_a_schedule_over_tokens_that_says_its_end(settings: dict[str, Any]) -> None:
    assert refusals(**settings) == []


def test_lanes_that_do_not_divide_the_virtual_lanes() -> None:
    with pytest.raises(UserError) as refusal:
        refusals(world_size=6)
    assert str(refusal.value) == (
        "data.num_virtual_lanes 64 is not a multiple of the layout's 6 lanes; it allows 1, 2, 4, 8, 16, 32, "
        "64. A run that begins can set it to 60 or 66; one that resumes needs a layout with one of these "
        "numbers of lanes"
    )
    with pytest.raises(
        UserError, match=r"data.num_virtual_lanes 4 is .*; it allows 1, 2, 4\. .* set it to 6;"
    ):
        refusals(world_size=6, **{"data.num_virtual_lanes": 4})


def test_other_sources_have_no_virtual_lanes() -> None:
    resolve({"train": {"global_batch_size": 6, "max_steps": 1}, "cluster": {"world_size": 6}})


def test_each_virtual_lane_has_a_window_of_its_own() -> None:
    def window(**data: Any) -> int:
        config = {"data": data, "train": {"global_batch_size": 8}, "cluster": {"world_size": 1}}
        return resolve(config).data.packing_window

    assert window() == 1024
    assert window(source="energon") == 128
    assert window(source="energon", packing_window=1024) == 1024
