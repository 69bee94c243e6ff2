"""One chat record, and the refusal of what cannot be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ROLES",
    "BadRecordError",
    "ChatRecord",
    "Message",
    "RecordSet",
    "cut",
    "kind_of",
    "names_of",
    "place_of",
]

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        role: one of `ROLES`.
        content: its text; empty only in an assistant's turn that calls tools.
        name: who speaks, or the tool that answers, where the record says it.
        tool_calls: in the form chat templates take, ``{"type": "function", "function": {"name",
            "arguments"}}`` with arguments as a mapping, and the "id" where the record has one.
        tool_call_id: of a tool's turn: the call it answers.
        train: whether the record lets this turn be trained.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[Mapping[str, object], ...] = ()
    tool_call_id: str | None = None
    train: bool = True


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """One chat.

    Attributes:
        index: place among the records of its file that were accepted, from 0.
        messages: the turns, at least one of them from the assistant.
        source: the file, or a qualified name for built-in data.
        line: physical line of the file, from 1, or row of the table, from 0; None for built-in data.
        tools: what the chat may call, each ``{"type": "function", "function": {"name", ...}}``.
        file: place of its file among those of the data.
        unit: what ``line`` counts: "line" or "row".
    """

    index: int
    messages: tuple[Message, ...]
    source: str
    line: int | None
    tools: tuple[Mapping[str, object], ...] = ()
    file: int = 0
    unit: str = "line"

    @property
    def number(self) -> int:
        """By which a person finds it in its file."""
        return self.index if self.line is None else self.line

    @property
    def place(self) -> str:
        """File and line, for messages."""
        source = self.source if len(self.source) <= 120 else "..." + self.source[-117:]
        return place_of(source, "record" if self.line is None else self.unit, self.number)


@dataclass(frozen=True)
class RecordSet:
    """Accepted records; lines skipped by reason; ``first_lines``: where each reason was first met."""

    records: list[ChatRecord]
    skipped: Counter[str] = field(default_factory=Counter)
    first_lines: Mapping[str, int] = field(default_factory=dict)


class BadRecordError(Exception):
    """A record cannot be used; ``reason`` is the same for all records of its kind, ``detail`` is not."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def place_of(name: str, unit: str, number: int) -> str:
    """How all messages write where a record is.

    >>> place_of("chats.jsonl", "line", 8)
    'chats.jsonl, line 8'
    """
    return f"{name}, {unit} {number}"


def kind_of(value: object) -> str:
    """A JSON value in words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true/false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def names_of(value: Mapping[str, object]) -> str:
    """The keys of an object, for messages."""
    return cut(", ".join(f'"{key}"' for key in value)) or "none"


def cut(text: str, limit: int = 60) -> str:
    """At most ``limit`` characters, all of them printable."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(text) <= limit else shown[: limit - 3] + "..."
