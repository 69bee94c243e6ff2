"""Tools and their calls in the OpenAI form, brought into the one that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rankloom.records.json_text import decode
from rankloom.records.record import BadRecordError, Message, cut, kind_of

__all__ = ["refuse_old_keys", "refuse_stray_results", "tool_calls_of", "tools_of"]

OLD_KEYS = ("functions", "function_call")
BAD_CALL, BAD_TOOL = "not a tool call", "not a tool"
MAX_DEPTH = 100  # of objects and lists in each other; real ones have less than ten
NULLS = "the columns of a table cannot tell null from missing; keep them as JSON text"


def tools_of(value: object, *, columnar: bool) -> tuple[Mapping[str, object], ...]:
    """The tools of a record, from a list or its JSON text; ``columnar``: see `tool_calls_of`."""
    if value in (None, "", []):
        return ()
    tools = _decoded(value, '"tools"', BAD_TOOL) if isinstance(value, str) else value
    if not isinstance(tools, list):
        raise BadRecordError(BAD_TOOL, f'"tools" is {kind_of(tools)}, not a list')
    for place, tool in enumerate(tools, start=1):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRecordError(
                BAD_TOOL, f'tool {place} is not {{"type": "function", "function": {{"name"}}}}'
            )
    if columnar and not isinstance(value, str) and _has_null(tools):
        raise BadRecordError(BAD_TOOL, f'"tools" has nulls; {NULLS}')
    _refuse_unwritable(tools, '"tools"')
    return tuple(tools)


def tool_calls_of(value: object, what: str, *, columnar: bool) -> tuple[Mapping[str, object], ...]:
    """The calls of one message, their arguments as mappings.

    Args:
        value: what the message has in "tool_calls".
        what: the message, for refusals.
        columnar: the record comes from a table, where a mapping holds the keys of all rows, null where a row
            has none.
    """
    if value in (None, []):
        return ()
    if not isinstance(value, list):
        raise BadRecordError(BAD_CALL, f'{what} has {kind_of(value)} as "tool_calls"')
    return tuple(_call(call, f"call {n} of {what}", columnar) for n, call in enumerate(value, start=1))


def _call(call: object, what: str, columnar: bool) -> Mapping[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise BadRecordError(BAD_CALL, f'{what} has no "function"')
    if call.get("type") not in (None, "function"):
        raise BadRecordError(BAD_CALL, f'{what} is of type "{cut(str(call["type"]), 30)}", not "function"')
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise BadRecordError(BAD_CALL, f"{what} has {kind_of(name)} as name")
    if isinstance(arguments, str):
        arguments = _decoded(arguments or "{}", f"arguments of {what}", BAD_CALL)
    elif columnar and _has_null(arguments):
        raise BadRecordError(BAD_CALL, f"arguments of {what} have nulls; {NULLS}")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise BadRecordError(BAD_CALL, f"arguments of {what} are {kind_of(arguments)}, not an object")
    _refuse_unwritable([name, arguments], what)
    given = {} if call.get("id") is None else {"id": _identifier(call["id"], what)}
    return {**given, "type": "function", "function": {"name": name, "arguments": arguments}}


def _identifier(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadRecordError(BAD_CALL, f"{what} has {kind_of(value)} as id")
    return value


def refuse_stray_results(messages: Iterable[Message]) -> None:
    """A tool's turn must answer a call that was made before it."""
    known: set[object] = set()
    for place, message in enumerate(messages, start=1):
        known |= {call.get("id") for call in message.tool_calls}
        if message.tool_call_id is not None and message.tool_call_id not in known:
            detail = (
                f'message {place} has tool_call_id "{cut(message.tool_call_id, 30)}", no call before it has'
            )
            raise BadRecordError("a tool result without its call", detail)


def refuse_old_keys(value: Mapping[str, object], what: str) -> None:
    """Leaving them out would change what the chat says without a word."""
    used = [key for key in OLD_KEYS if value.get(key)]
    if used:
        detail = f'{what} has "{used[0]}"; use "tools" and "tool_calls"'
        raise BadRecordError("the old form of tool calls is not supported", detail)


def _decoded(text: str, what: str, reason: str) -> object:
    try:
        return decode(text)
    except (ValueError, RecursionError):
        raise BadRecordError(reason, f"{what}: not valid JSON: {cut(text, 40)}") from None


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return isinstance(value, list) and any(item is None or _has_null(item) for item in value)


def _refuse_unwritable(value: object, what: str) -> None:
    """Raises BadRecordError for what no chat template could write as JSON, or as anything."""
    if _is_deeper(value, MAX_DEPTH):
        raise BadRecordError("nested too deep", f"{what} has more than {MAX_DEPTH} levels")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecordError("unpaired surrogate", f"{what} has half of a \\uD8xx\\uDCxx pair") from None
    except (ValueError, TypeError):
        raise BadRecordError("not valid JSON", f"{what} cannot be written as JSON") from None


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(value, dict | list) for value in level)
