"""What is found about a job: how bad it is, what it is about, and which settings it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rankloom.errors import printable

__all__ = ["SEVERITIES", "Finding", "Severity", "Topic"]

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # worst first
Topic = Literal[
    "settings",
    "layout",
    "batch",
    "sequence",
    "model",
    "experts",
    "training",
    "data",
    "outputs",
    "placement",
    "driver",
    "calls",
]


@dataclass(frozen=True)
class Finding:
    """One thing to know about a job.

    ``message`` is the arithmetic and the remedy ("...; try 8 or 12"); ``keys`` the settings it is about, as
    dotted keys; ``where`` says in words where their values come from ("parallel section of run.yaml").
    """

    severity: Severity
    topic: Topic
    message: str
    keys: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        for name in ("message", "where"):  # keys, values and paths are anybody's
            object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def text(self) -> str:
        """The message with where its values come from, one line."""
        return f"{self.message} ({self.where})" if self.where else self.message
