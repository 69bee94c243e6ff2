"""What differs between the settings a checkpoint was saved with and those of the run that resumes it.

The present settings hold from the next step on; positions (consumed rows and tokens, epochs) go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["Change", "changed_settings", "differences", "is_about_records", "not_named"]

# How ranks are laid out and started, and where files go: none of it changes what is trained.
_OF_NO_CONCERN = ("parallel", "cluster", "comm", "logging", "checkpoint")
# Told by the comparison of the models themselves, or used at a first step alone.
_SAID_ELSEWHERE = ("model.config", "model.path", "model.dtype", "train.seed")
_WORK_ALONE = (
    "train.micro_batch_size",
    "train.gradient_checkpointing",
    "train.eval_batch_size",
    "data.num_workers",
    "data.cache_dir",
    "data.balance",
)
# Which records there are and how they become rows: compared by fingerprint, whatever the settings say.
_ABOUT_RECORDS = (
    "data.source",
    "data.path",
    "data.num_virtual_lanes",
    "data.train",
    "data.validation_split",
    "data.train_on",
    "data.max_seq_length",
    "data.packing",
    "data.packing_window",
    "data.seed",
    "data.bad_records",
    "data.overlong",
)


@dataclass(frozen=True)
class Change:
    """A setting, by its dotted key, with its value then and now."""

    key: str
    saved: object
    now: object

    @property
    def text(self) -> str:
        return f"{self.key} was {_shown(self.saved)}, now it is {_shown(self.now)}"


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


def changed_settings(
    saved: Mapping[str, Mapping[str, object]], now: Mapping[str, Mapping[str, object]]
) -> list[Change]:
    """Settings that decide what is trained and have another value now; keys that were not known then are
    left out."""
    return [
        Change(f"{section}.{name}", before[name], value)
        for section, values in now.items()
        for before in [saved.get(section) or {}]
        for name, value in values.items()
        if section not in _OF_NO_CONCERN
        and f"{section}.{name}" not in (*_SAID_ELSEWHERE, *_WORK_ALONE)
        and name in before
        and before[name] != value
    ]


def is_about_records(change: Change) -> bool:
    """Whether the setting has a part in which rows there are, and in which order."""
    return change.key in _ABOUT_RECORDS


def differences(
    saved: Mapping[str, object], now: Mapping[str, object], *, prefix: str, ignored: Iterable[str] = ()
) -> list[Change]:
    """Entries of two mappings that differ, with ``prefix`` before their keys; None and a missing one are the
    same."""
    keys = [key for key in dict.fromkeys([*saved, *now]) if key not in set(ignored)]
    return [
        Change(f"{prefix}{key}", saved.get(key), now.get(key))
        for key in keys
        if saved.get(key) != now.get(key)
    ]


def not_named(changes: Iterable[Change], allowed: Sequence[str]) -> list[Change]:
    """Those that no glob of ``allowed`` names."""
    return [c for c in changes if not any(fnmatchcase(c.key, glob) for glob in allowed)]
