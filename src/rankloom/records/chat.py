"""What makes a JSON value a chat: the OpenAI messages form, or a prompt with its response."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rankloom.records.record import ROLES, BadRecordError, Message, cut, kind_of, names_of
from rankloom.records.tools import refuse_old_keys, refuse_stray_results, tool_calls_of, tools_of

__all__ = ["PAIRS", "Chat", "chat_of", "messages_of"]

PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "response"),
    ("instruction", "output"),
    ("input", "output"),
    ("question", "answer"),
)
# Keys that chat templates render beside these, or that hold what was said in another form than text.
OTHER_CONTENT_KEYS = ("reasoning_content", "reasoning", "thinking", "prefix", "refusal", "audio")


class Chat(NamedTuple):
    """The turns of a record and the tools it names."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()


def messages_of(value: object) -> tuple[Message, ...]:
    """The turns of `chat_of`."""
    return chat_of(value).messages


def chat_of(value: object, *, columnar: bool = False) -> Chat:
    """The chat of one decoded JSON value.

    Either ``{"messages": [{"role", "content", ...}, ...]}`` or one of `PAIRS`: a prompt, as text or messages,
    and its response, beside an optional "system" text; of a pair the response alone is trained. Both may have
    "tools".

    Args:
        value: one line of a file, or one row of a table.
        columnar: it is a row of a table, which has null where a line would leave a key out.

    Raises:
        BadRecordError: it is neither, or both, or holds no assistant turn to train on.
    """
    if not isinstance(value, dict):
        raise BadRecordError("not a JSON object", f"found {kind_of(value)}")
    refuse_old_keys(value, "the record")
    pairs = [pair for pair in PAIRS if all(value.get(key) is not None for key in pair)]
    if len(pairs) + (value.get("messages") is not None) > 1:
        forms = ['"messages"'] * (value.get("messages") is not None) + [f'"{p}" and "{r}"' for p, r in pairs]
        raise BadRecordError("more than one form of a chat", f"found {', '.join(forms[:2])}; keep one")
    turns = _turns_of_pair(value, *pairs[0], columnar) if pairs else list(_turns(value, columnar))
    if not any(message.role == "assistant" for message in turns):
        raise BadRecordError("no assistant turn", f"roles are {cut(', '.join(m.role for m in turns))}")
    refuse_stray_results(turns)
    return Chat(tuple(turns), tools_of(value.get("tools"), columnar=columnar))


def _turns(value: Mapping[str, object], columnar: bool) -> Iterator[Message]:
    if "messages" not in value or (columnar and value["messages"] is None):
        raise BadRecordError('no "messages" key', f"keys are {names_of(value)}")
    return _messages(value["messages"], '"messages"', columnar)


def _messages(turns: object, what: str, columnar: bool, first: int = 1) -> Iterator[Message]:
    if not isinstance(turns, list):
        raise BadRecordError(f"{what} is not a list", f"found {kind_of(turns)}")
    if not turns:
        raise BadRecordError(f"{what} is empty")
    return (_message(turn, place, columnar) for place, turn in enumerate(turns, start=first))


def _turns_of_pair(value: Mapping[str, object], prompt: str, response: str, columnar: bool) -> list[Message]:
    asked, answered, system = value[prompt], value[response], value.get("system")
    messages: list[Message] = []
    if system is not None:
        if isinstance(asked, list):
            raise BadRecordError("more than one form of a chat", f'"system" beside messages in "{prompt}"')
        messages.append(_message({"role": "system", "content": system}, 1, columnar))
    if isinstance(asked, list):
        before = _messages(asked, f'"{prompt}"', columnar)
        messages += [_not_trained(message) for message in before]
    else:
        messages.append(_message({"role": "user", "content": asked}, len(messages) + 1, columnar))
    place = len(messages) + 1
    if isinstance(answered, list):
        return messages + list(_messages(answered, f'"{response}"', columnar, place))
    return [*messages, _message({"role": "assistant", "content": answered}, place, columnar)]


def _not_trained(message: Message) -> Message:
    """Of a pair the response is trained; what the assistant said before is not."""
    if message.role != "assistant":
        return message
    return Message(message.role, message.content, message.name, message.tool_calls, train=False)


def _message(turn: object, place: int, columnar: bool) -> Message:
    if not isinstance(turn, dict):
        raise BadRecordError("a message is not an object", f"message {place} is {kind_of(turn)}")
    role = turn.get("role")
    if not isinstance(role, str) or role not in ROLES:
        found = f'has role "{cut(role)}"' if isinstance(role, str) else f"has {kind_of(role)} as role"
        raise BadRecordError("wrong role", f"message {place} {found}, expected one of {', '.join(ROLES)}")
    what = f"message {place} ({role})"
    if len(turn) == 2 and "content" in turn:  # most turns, without a look for other keys
        return Message(role, _content(turn["content"], what, may_be_empty=False))
    refuse_old_keys(turn, what)
    calls = tool_calls_of(turn.get("tool_calls"), what, columnar=columnar)
    if calls and role != "assistant":
        raise BadRecordError("not a tool call", f"{what} calls a tool; only the assistant can")
    content = _content(turn.get("content"), what, may_be_empty=bool(calls))
    _refuse_other_keys(turn, what)
    return Message(
        role,
        content,
        name=_text_or_none(turn, "name", what),
        tool_calls=calls,
        tool_call_id=_tool_call_id(turn, role, what),
        train=_is_trained(turn, role, what),
    )


def _content(content: object, what: str, *, may_be_empty: bool) -> str:
    if isinstance(content, list):
        content = "".join(_part(part, what) for part in content)
    if content is None and may_be_empty:
        return ""
    if not isinstance(content, str):
        raise BadRecordError("content is not text", f"{what} has {kind_of(content)} as content")
    if not may_be_empty and not content.strip():
        raise BadRecordError("empty content", what)
    if not content.isascii() and not _encodable(content):
        raise BadRecordError("unpaired surrogate", f"{what} has half of a \\uD8xx\\uDCxx pair")
    return content


def _part(part: object, what: str) -> str:
    """The text of one part of a content that is a list; nothing stands between the texts of several."""
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = f'a part of type "{cut(str(part.get("type")), 30)}"' if isinstance(part, dict) else kind_of(part)
    raise BadRecordError("content is not text", f"{what} has {kind} in its content")


def _is_trained(turn: Mapping[str, object], role: str, what: str) -> bool:
    """What "train" and "weight" say; an assistant's turn without them is trained."""
    said: dict[str, bool] = {}
    for key, choices in (("train", (True, False)), ("weight", (1, 0))):
        value = turn.get(key)
        if value is None:
            continue
        if value not in choices or (key == "train") != isinstance(value, bool):
            allowed = " or ".join(json.dumps(choice) for choice in choices)
            detail = f'{what} has "{key}" {cut(json.dumps(value, default=str), 20)}, expected {allowed}'
            raise BadRecordError("wrong choice of what to train", detail)
        said[key] = bool(value)
    if len(set(said.values())) > 1:
        raise BadRecordError("wrong choice of what to train", f'{what}: "train" and "weight" disagree')
    if role != "assistant" and said.get("train"):
        detail = f'{what} has "train" true; only turns of the assistant are chosen'
        raise BadRecordError("wrong choice of what to train", detail)
    return all(said.values())


def _tool_call_id(turn: Mapping[str, object], role: str, what: str) -> str | None:
    given = _text_or_none(turn, "tool_call_id", what)
    if given is not None and role != "tool":
        raise BadRecordError("a tool result without its call", f'{what} has "tool_call_id"; only a tool can')
    return given


def _text_or_none(turn: Mapping[str, object], key: str, what: str) -> str | None:
    value = turn.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _encodable(value):
        raise BadRecordError(f'"{key}" is not text', f"{what} has {kind_of(value)} there")
    return value


def _refuse_other_keys(turn: Mapping[str, object], what: str) -> None:
    """Passing over these would train on another text, or on more of it, than the file says."""
    if turn.get("train_detail"):
        raise BadRecordError("wrong choice of what to train", f'{what} has "train_detail"')
    for key in OTHER_CONTENT_KEYS:
        if turn.get(key):  # null and empty ones say nothing
            raise BadRecordError("more than text and tool calls is not supported", f'{what} has "{key}"')


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
