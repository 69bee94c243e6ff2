"""One chat record, and what makes a JSON value one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ROLES", "BadRecordError", "ChatRecord", "Message", "RecordSet", "messages_of"]

ROLES = ("system", "user", "assistant", "tool")
TOOL_KEYS = ("tools", "functions", "tool_calls", "function_call")
# Keys that chat templates render beside role and content, or that other programs train by.
RENDERED_KEYS = ("name", "reasoning_content", "reasoning", "thinking", "tool_call_id", "prefix")
TRAINING_KEYS = ("weight", "train", "train_detail")


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """One chat.

    Attributes:
        index: place among the records that were accepted, from 0.
        messages: the turns, at least one of them from the assistant.
        source: the file, or a qualified name for built-in data.
        line: physical line of the file, from 1; None for built-in data.
    """

    index: int
    messages: tuple[Message, ...]
    source: str
    line: int | None


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


def messages_of(value: object) -> tuple[Message, ...]:
    """The messages of one decoded JSON value ``{"messages": [{"role", "content"}, ...]}``.

    Raises:
        BadRecordError: it is not such an object, or holds no assistant turn to train on.
    """
    if not isinstance(value, dict):
        raise BadRecordError("not a JSON object", f"found {_kind(value)}")
    if "messages" not in value:
        raise BadRecordError('no "messages" key', f"keys are {_names(value)}")
    _refuse_tools(value)
    turns = value["messages"]
    if not isinstance(turns, list):
        raise BadRecordError('"messages" is not a list', f"found {_kind(turns)}")
    if not turns:
        raise BadRecordError('"messages" is empty')
    messages = tuple(_message(turn, place) for place, turn in enumerate(turns, start=1))
    if not any(message.role == "assistant" for message in messages):
        raise BadRecordError("no assistant turn", f"roles are {_cut(', '.join(m.role for m in messages))}")
    return messages


def _message(turn: object, place: int) -> Message:
    if not isinstance(turn, dict):
        raise BadRecordError("a message is not an object", f"message {place} is {_kind(turn)}")
    _refuse_tools(turn)
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in ROLES:
        found = f'has role "{_cut(role)}"' if isinstance(role, str) else f"has {_kind(role)} as role"
        raise BadRecordError("wrong role", f"message {place} {found}, expected one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise BadRecordError(
            "content is not text", f"message {place} ({role}) has {_kind(content)} as content"
        )
    if not content.strip():
        raise BadRecordError("empty content", f"message {place} ({role})")
    if not _encodable(content):
        raise BadRecordError(
            "unpaired surrogate", f"message {place} ({role}) has half of a \\uD8xx\\uDCxx pair"
        )
    _refuse_other_keys(turn, f"message {place} ({role})")
    return Message(role=role, content=content)


def _refuse_other_keys(turn: Mapping[str, object], what: str) -> None:
    """Passing over these would train on another text, or on more of it, than the file says."""
    for key in TRAINING_KEYS:
        value = turn.get(key)
        if value is not None and value is not True and not (key == "weight" and value == 1):
            detail = (
                f'{what} has "{key}" {_cut(json.dumps(value), 20)}; every assistant turn is trained alike'
            )
            raise BadRecordError("choosing the turns to train is not supported", detail)
    for key in RENDERED_KEYS:
        if turn.get(key):  # null and empty ones say nothing
            raise BadRecordError("more than role and content is not supported", f'{what} has "{key}"')


def _refuse_tools(value: Mapping[str, object]) -> None:
    # Leaving them out would change what the chat says without a word.
    used = [key for key in TOOL_KEYS if value.get(key)]
    if used:
        raise BadRecordError("tool calls are not supported", f'found "{used[0]}"')


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true/false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _names(value: Mapping[str, object]) -> str:
    return _cut(", ".join(f'"{key}"' for key in value)) or "none"


def _cut(text: str, limit: int = 60) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
