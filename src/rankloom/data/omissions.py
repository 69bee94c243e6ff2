"""What a record says and its rendered text does not: refused, so that no other text is trained on.

Every part of the record that has to be in the text gets a private character of its own at its end; the chat
is rendered once more, and each of these characters has to be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankloom.records import Message
from rankloom.records.record import BadRecordError, cut

__all__ = ["Omissions"]

FIRST_MARK, MAX_MARKS = 0xF0000, 65_000  # a private use plane: characters that mean nothing
MAX_KNOWN = 1024

Turn = dict[str, Any]
Tools = Sequence[Mapping[str, object]]
Render = Callable[[list[Turn], list[Any]], str]


@dataclass
class _Marks:
    """Marks set so far, each with the refusal for its absence: reason and detail."""

    refusals: list[tuple[str, str]] = field(default_factory=list)

    def on(self, text: str, reason: str, detail: str) -> str:
        if len(self.refusals) == MAX_MARKS:
            return text
        self.refusals.append((reason, detail))
        return text + chr(FIRST_MARK + len(self.refusals) - 1)

    def missing_in(self, text: str) -> tuple[str, str] | None:
        for place, refusal in enumerate(self.refusals):
            if not _is_in(chr(FIRST_MARK + place), text):
                return refusal
        return None


class Omissions:
    """Finds what a template leaves out.

    Args:
        render: turns and tools to text.
        turn_of: a message as the template takes it.
    """

    def __init__(self, render: Render, turn_of: Callable[[Message], Turn]) -> None:
        self._render = render
        self._turn_of = turn_of
        self._complete: set[tuple[str, ...]] = set()

    def refuse(self, messages: Sequence[Message], tools: Tools, text: str) -> None:
        """Raises BadRecordError when ``text``, the rendered chat, lacks what was said to the assistant, the
        name of who said it, a tool, or a call of one with its arguments.

        Ids of calls are links, not text, and the name of a tool that answers stands in its call: a template
        may leave them out. Of chats without tools and names one for each sequence of roles is rendered again.
        """
        if tools or any(message.tool_calls or message.name for message in messages):
            missing = self._missing(messages, tools)
        else:
            roles = tuple(message.role for message in messages)
            missing = None if roles in self._complete else self._missing(messages, ())
            if missing is None and len(self._complete) < MAX_KNOWN:
                self._complete.add(roles)
        if missing is not None:
            raise BadRecordError(*missing)
        for place, message in enumerate(messages, start=1):
            if message.role != "assistant" and not _is_in(message.content.strip(), text):
                raise BadRecordError(*_message_refusal(message, place))

    def _missing(self, messages: Sequence[Message], tools: Tools) -> tuple[str, str] | None:
        marks = _Marks()
        called: set[str] = set()
        turns = []
        for place, message in enumerate(messages, start=1):
            turns.append(self._marked(message, place, called, marks))
            called |= {str(_function(call)["name"]) for call in message.tool_calls}
        try:
            text = self._render(turns, [_marked_tool(tool, marks) for tool in tools])
        except BadRecordError:  # the template cannot take a text that was changed
            return None
        return marks.missing_in(text)

    def _marked(self, message: Message, place: int, called: set[str], marks: _Marks) -> Turn:
        turn = self._turn_of(message)
        if message.role != "assistant":
            turn["content"] = marks.on(message.content.rstrip(), *_message_refusal(message, place))
        if message.name is not None and not (message.role == "tool" and message.name in called):
            detail = f'"{cut(message.name, 30)}" of message {place}'
            turn["name"] = marks.on(message.name, "the chat template leaves out names", detail)
        if message.tool_calls:
            what = f"message {place} calls a tool"
            turn["tool_calls"] = [_marked_call(call, what, marks) for call in message.tool_calls]
        return turn


def _message_refusal(message: Message, place: int) -> tuple[str, str]:
    return "the chat template leaves out a message", f"message {place} ({message.role})"


def _function(call: Mapping[str, object]) -> Mapping[str, object]:
    function = call["function"]
    assert isinstance(function, Mapping)
    return function


def _marked_call(call: Mapping[str, object], what: str, marks: _Marks) -> dict[str, object]:
    def marked(value: object) -> object:
        if isinstance(value, Mapping):
            return {said(str(key)): marked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [marked(item) for item in value]
        return said(value if isinstance(value, str) else json.dumps(value))

    def said(text: str) -> str:
        detail = f'{what}, "{cut(text, 40)}" is not in the text'
        return marks.on(text, "the chat template leaves out tool calls", detail)

    function = _function(call)
    arguments = marked(function["arguments"])
    return {**call, "function": {**function, "name": said(str(function["name"])), "arguments": arguments}}


def _marked_tool(tool: Mapping[str, object], marks: _Marks) -> dict[str, object]:
    function = dict(_function(tool))
    name = str(function["name"])
    for key in ("name", "description"):
        if isinstance(function.get(key), str):
            detail = f'the {key} of "{cut(name, 40)}" is not in the text'
            function[key] = marks.on(str(function[key]), "the chat template leaves out the tools", detail)
    return {**tool, "function": function}


def _is_in(said: str, text: str) -> bool:
    """As it is, or as it stands in JSON."""
    return (
        said in text or json.dumps(said, ensure_ascii=False)[1:-1] in text or json.dumps(said)[1:-1] in text
    )
