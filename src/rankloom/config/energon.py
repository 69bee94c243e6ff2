"""Settings of an Energon data set: its virtual lanes, and what cannot be had with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankloom.config.findings import Finding
from rankloom.errors import UserError

__all__ = ["ENERGON", "PACKING_WINDOW", "check_virtual_lanes", "energon_problems"]

ENERGON = "energon"
SOURCE, PATH = "data.source", "data.path"
# Each virtual lane keeps so many tokenised samples; 1,024 of them in each of 64 would delay the first step.
PACKING_WINDOW = 128

Value = Callable[[str], object]


def check_virtual_lanes(num_virtual_lanes: int, num_lanes: int) -> None:
    """Raises UserError, in config keys, where virtual lanes cannot be shared out evenly."""
    if num_virtual_lanes % num_lanes == 0:
        return
    works = [str(number) for number in range(1, num_virtual_lanes + 1) if num_virtual_lanes % number == 0]
    below = num_virtual_lanes // num_lanes * num_lanes
    near = f"{below} or {below + num_lanes}" if below else f"{num_lanes}"
    raise UserError(
        f"data.num_virtual_lanes {num_virtual_lanes} is not a multiple of the layout's {num_lanes} lanes; "
        f"it allows {', '.join(works)}. A run that begins can set it to {near}; one that resumes needs a "
        "layout with one of these numbers of lanes"
    )


def energon_problems(value: Value, *, where: Callable[[str], str]) -> Iterator[Finding]:
    """A finding for each setting that does not go with ``data.source``. ``value`` gives that of a key."""
    for message, key in _problems(value):
        yield Finding("error", "training", message, (key,), where(key))


def _problems(value: Value) -> Iterator[tuple[str, str]]:
    path = value(PATH)
    if value(SOURCE) != ENERGON:
        if path is not None:
            yield f"{PATH} {path} is the data set of {SOURCE} energon; set that, or data.train", PATH
        return
    if path is None:
        yield f"{SOURCE} energon: set {PATH} to a data set made ready with energon prepare", SOURCE
    if value("data.train") is not None:
        yield f"data.train and {SOURCE} energon are both set; set one of them to null", "data.train"
    if value("train.epochs") is not None:
        message = (
            f"train.epochs {value('train.epochs')}: how many rows an Energon data set has is known once its "
            "samples are tokenised and packed, while the run goes on; set train.max_steps instead (rankloom "
            "inspect tells about how many steps an epoch has)"
        )
        yield message, "train.epochs"
    if value("data.validation_split"):
        message = (
            f"data.validation_split {value('data.validation_split'):g}: an Energon data set is not split "
            "here; set data.validation to files of chats"
        )
        yield message, "data.validation_split"
    if value("data.balance") == "work":
        message = (
            "data.balance work: a row of an Energon data set is made by the lane that trains on it, and "
            "cannot be dealt to another; set it to none"
        )
        yield message, "data.balance"
    yield from _open_end(value)


def _open_end(value: Value) -> Iterator[tuple[str, str]]:
    """A schedule over tokens that would end with the run, whose tokens are not known before."""
    keys = [f"schedule.{part}_tokens" for part in ("warmup", "wsd_decay", "decay")]
    given = [key for key in keys if value(key) is not None]
    if given and value(keys[-1]) is None and value("schedule.decay") != "constant":
        message = (
            f"{given[0]} {value(given[0])}: how many tokens a run on an Energon data set has is not known "
            f"before; set {keys[-1]} too"
        )
        yield message, given[0]
