"""What a record says and its rendered text does not: refused, so that no other text is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from rankloom.records import Message
from rankloom.records.record import BadRecordError, cut

__all__ = ["refuse_left_out_messages", "refuse_left_out_tools"]


def refuse_left_out_messages(messages: Sequence[Message], text: str) -> None:
    """Raises BadRecordError when the text lacks what was said to the assistant, or the name of a speaker."""
    for place, message in enumerate(messages, start=1):
        if message.role != "assistant" and not _is_in(message.content.strip(), text):
            raise BadRecordError(
                "the chat template leaves out a message", f"message {place} ({message.role})"
            )
        if message.name is not None and not _is_in(message.name, text):
            detail = f'"{cut(message.name, 30)}" of message {place}'
            raise BadRecordError("the chat template leaves out names", detail)


def refuse_left_out_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], text: str
) -> None:
    """Raises BadRecordError when the text lacks a tool, or a call of one with its arguments. Ids of calls are
    links, not text; a template may leave them out."""
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, Mapping)
        if not _is_in(str(function["name"]), text):
            detail = f'"{cut(str(function["name"]), 40)}" is not in the text'
            raise BadRecordError("the chat template leaves out the tools", detail)
    for place, message in enumerate(messages, start=1):
        for call in message.tool_calls:
            missing = next((said for said in _words(call["function"]) if not _is_in(said, text)), None)
            if missing is not None:
                detail = f'message {place} calls a tool, "{cut(missing, 40)}" is not in the text'
                raise BadRecordError("the chat template leaves out tool calls", detail)


def _is_in(said: str, text: str) -> bool:
    """As it is, or as it stands in JSON."""
    return (
        said in text or json.dumps(said, ensure_ascii=False)[1:-1] in text or json.dumps(said)[1:-1] in text
    )


def _words(value: object) -> Iterator[str]:
    """The texts and numbers of a call and the names of its arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("name", "arguments"):
                yield str(key)
            yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)
