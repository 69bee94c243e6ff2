"""The kinds of value a setting can have, each with the words a refusal uses for it."""

from __future__ import annotations

import re
import types
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rankloom.config.yaml_file import as_number

__all__ = [
    "Beta",
    "Clock",
    "Count",
    "ELEMENT_BYTES",
    "DataSources",
    "FreeMapping",
    "NonNegative",
    "NonNegativeInt",
    "Positive",
    "Rampup",
    "RankLists",
    "Rows",
    "Seconds",
    "Share",
    "Text",
    "Texts",
    "TimeLimit",
    "WandbSettings",
    "WeightedSource",
    "allowed_text",
    "allows_null",
    "next_time",
    "seconds_of",
]


MOST_RANKS = 2**20  # a layout has an entry a rank
MOST_ROWS = 2**31 - 1  # of a batch
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # of a value of each dtype
SECONDS_OF_A_YEAR = 365 * 24 * 3600  # more than that overflows the clocks of communication libraries


@dataclass(frozen=True)
class Allowed:
    """What a value may be, for messages."""

    text: str


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return as_number(value)


def _text(value: object) -> object:
    # YAML reads `dir: 2026` as a number and `dir: 2026-11-29` as a date, though nobody means one.
    is_other = isinstance(value, int | float | date) and not isinstance(value, bool)
    if isinstance(value, str) and "\0" in value:
        raise ValueError("no file and no name has this character")
    return str(value) if is_other else value


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _rank_lists(value: object) -> object:
    """Lists of ranks, where a list may be the text "0-3,8" and all of them the text "0-3;4-7"."""
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError("neither a list nor a text")
    return [_rank_list(entry) for entry in value]


def _rank_list(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str):
        return value
    ranks: list[int] = []
    for part in value.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        added = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + 1)
        if len(ranks) + added.stop - added.start > MOST_RANKS:
            raise ValueError("there are not as many ranks")
        ranks += added
    return ranks


def seconds_of(text: str) -> int:
    """The seconds of "H:MM:SS" or "D-HH:MM:SS", as Slurm writes a time limit. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text)
    if match is None:
        raise ValueError("not H:MM:SS")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _time_limit(value: object) -> object:
    text = _text(value)
    if isinstance(text, str) and seconds_of(text) > SECONDS_OF_A_YEAR:
        raise ValueError("more than a year")
    return text


def next_time(text: str, *, now: datetime) -> datetime:
    """The first time after ``now`` that the clock shows "HH:MM"; or the moment "2026-11-30T18:30" itself, of
    no zone, as ``now`` is, unless it names one. Raises ValueError."""
    if re.fullmatch(r"\d{1,2}:\d\d", text):
        hour, minute = map(int, text.split(":"))
        moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return moment if moment > now else moment + timedelta(days=1)
    return datetime.fromisoformat(text)


def _clock(value: object) -> object:
    text = _text(value)
    if isinstance(text, str):
        next_time(text, now=datetime(2026, 1, 1))
    return text


_NUMBER = BeforeValidator(_number)

Count: TypeAlias = Annotated[int, _NUMBER, Field(ge=1), Allowed("an integer of at least 1")]
Rows: TypeAlias = Annotated[
    int, _NUMBER, Field(ge=1, le=MOST_ROWS), Allowed(f"an integer from 1 to {MOST_ROWS}")
]
NonNegativeInt: TypeAlias = Annotated[int, _NUMBER, Field(ge=0), Allowed("an integer of at least 0")]
Positive: TypeAlias = Annotated[
    float, _NUMBER, Field(gt=0, allow_inf_nan=False), Allowed("a number greater than 0")
]
Seconds: TypeAlias = Annotated[
    float,
    _NUMBER,
    Field(gt=0, le=SECONDS_OF_A_YEAR, allow_inf_nan=False),
    Allowed(f"a number greater than 0 and at most {SECONDS_OF_A_YEAR} (a year)"),
]
NonNegative: TypeAlias = Annotated[
    float, _NUMBER, Field(ge=0, allow_inf_nan=False), Allowed("a number of at least 0")
]
Beta: TypeAlias = Annotated[
    float, _NUMBER, Field(ge=0, lt=1), Allowed("a number of at least 0 and less than 1")
]
Text: TypeAlias = Annotated[
    str, BeforeValidator(_text), Field(pattern=r"\S"), Allowed("a text that is not empty")
]
Clock: TypeAlias = Annotated[
    str, BeforeValidator(_clock), Allowed("a time of day such as 18:30, or a moment such as 2026-11-30T18:30")
]
TimeLimit: TypeAlias = Annotated[
    str, BeforeValidator(_time_limit), Allowed("a time such as 3:50:00 (H:MM:SS) or 1-12:00:00 (D-HH:MM:SS)")
]
Texts: TypeAlias = Annotated[
    tuple[Text, ...], BeforeValidator(_one_or_more), Allowed("a list of texts, or one text")
]
Rank: TypeAlias = Annotated[int, Field(ge=0, strict=True)]
RankLists: TypeAlias = Annotated[
    tuple[Annotated[tuple[Rank, ...], Field(min_length=1)], ...],
    BeforeValidator(_rank_lists),
    Field(min_length=1),
    Allowed('a list with the ranks of each domain, such as [[0, 1], [2, 3]] or "0-1;2-3"'),
]
Rampup: TypeAlias = Annotated[
    tuple[Rows, Rows, Count],
    Allowed("a list of 3 integers of at least 1: the first batch size, what is added to it, and the samples"),
]


class WandbRun(BaseModel):
    """Where a run is shown on Weights & Biases; offline, it is kept in a folder beside the metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: Text
    name: Text | None = None
    mode: Literal["offline", "online"] = "offline"


WandbSettings: TypeAlias = Annotated[
    WandbRun, Allowed('a mapping with a "project", and maybe a "name" and a "mode" (offline or online)')
]


class WeightedSource(BaseModel):
    """A file, glob or folder of chats, and how often its records occur in an epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Text
    weight: Positive = 1.0


DataSources: TypeAlias = Annotated[
    Text | WeightedSource | Annotated[tuple[Text | WeightedSource, ...], Field(min_length=1)],
    Allowed("a path, or a list of paths and {path, weight} with a weight greater than 0"),
]
Share: TypeAlias = Annotated[
    float, _NUMBER, Field(ge=0, lt=1), Allowed("a number of at least 0 and less than 1")
]
FreeMapping: TypeAlias = Annotated[dict[str, object], Allowed("a mapping")]


def allows_null(annotation: object) -> bool:
    """Whether a setting of this type may be null; null in any other means "not set"."""
    return type(None) in get_args(annotation)


def allowed_text(annotation: object, metadata: tuple[object, ...] = ()) -> str:
    """What a setting of this type may be: for ``Count | None`` "an integer of at least 1, or null"."""
    for item in metadata:
        if isinstance(item, Allowed):
            return item.text
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return allowed_text(args[0], args[1:])
    if origin in (Union, types.UnionType):
        parts = [allowed_text(a) for a in args if a is not type(None)]
        return " or ".join(parts) + (", or null" if allows_null(annotation) else "")
    if origin is Literal:
        return " or ".join(args) if len(args) < 3 else f"one of {', '.join(args)}"
    if origin is tuple:
        return _tuple_text(args)
    return "true or false" if annotation is bool else str(annotation)


def _tuple_text(args: tuple[object, ...]) -> str:
    if args[-1] is Ellipsis:
        return f"a list, each entry {allowed_text(args[0])}"
    return f"a list of {len(args)}, each entry {allowed_text(args[0])}"
