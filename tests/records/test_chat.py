"""The forms a record can have, and what they become."""

from __future__ import annotations

import pytest

from rankloom.records import Message, chat_of
from rankloom.records.record import BadRecordError

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2.5]}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(*turns: dict[str, object], **keys: object) -> dict[str, object]:
    return {"messages": list(turns), **keys}


USER = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}


def refusal(value: object, *, columnar: bool = False) -> str:
    with pytest.raises(BadRecordError) as caught:
        chat_of(value, columnar=columnar)
    return str(caught.value)


def test_tool_calls_reach_the_form_that_templates_take() -> None:
    found = chat_of(
        chat(
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "4"},
            ANSWER,
            tools=[TOOL],
        )
    )
    assert found.tools == (TOOL,)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5]}}}
    assert found.messages[1] == Message("assistant", "", tool_calls=(call,))
    assert found.messages[2] == Message("tool", "4", name="add", tool_call_id="c1")
    assert found.messages[3] == Message("assistant", "4")


def test_arguments_may_be_a_mapping_or_empty() -> None:
    calls = [{"function": {"name": "now", "arguments": {}}}, {"function": {"name": "now", "arguments": ""}}]
    found = chat_of(chat(USER, {"role": "assistant", "content": "let me see", "tool_calls": calls}))
    expected = {"type": "function", "function": {"name": "now", "arguments": {}}}
    assert found.messages[1] == Message("assistant", "let me see", tool_calls=(expected, expected))


def test_tools_may_be_json_text() -> None:
    assert chat_of(chat(USER, ANSWER, tools='[{"function": {"name": "add"}}]')).tools == (
        {"function": {"name": "add"}},
    )
    assert chat_of(chat(USER, ANSWER, tools=[])).tools == chat_of(chat(USER, ANSWER, tools=None)).tools == ()


def calling(**call: object) -> dict[str, object]:
    return chat(USER, {"role": "assistant", "tool_calls": [call]})


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


BAD_TOOLS: dict[str, tuple[object, str]] = {
    "functions": (
        chat(USER, ANSWER, functions=[{"name": "add"}]),
        'the old form of tool calls is not supported: the record has "functions"; use "tools" and "tool_ca',
    ),
    "function_call": (
        chat(USER, {"role": "assistant", "function_call": {"name": "add"}}),
        'message 2 (assistant) has "function_call"',
    ),
    "tools are a mapping": (
        chat(USER, ANSWER, tools={"a": 1}),
        'not a tool: "tools" is an object, not a list',
    ),
    "tools are no json": (chat(USER, ANSWER, tools="[{"), 'not a tool: "tools": not valid JSON: [{'),
    "a bare schema": (
        chat(USER, ANSWER, tools=[{"name": "add"}]),
        'tool 1 is not {"type": "function", "function": {"name"}}',
    ),
    "calls are a mapping": (
        chat(USER, {"role": "assistant", "tool_calls": {"name": "add"}}),
        'not a tool call: message 2 (assistant) has an object as "tool_calls"',
    ),
    "no function": (calling(name="add"), 'call 1 of message 2 (assistant) has no "function"'),
    "another type": (
        calling(type="custom", function={}),
        'call 1 of message 2 (assistant) is of type "custom", not "function"',
    ),
    "no name": (calling(function={"arguments": "{}"}), "call 1 of message 2 (assistant) has null as name"),
    "arguments are no json": (
        calling(function={"name": "add", "arguments": "{a: 1}"}),
        "arguments of call 1 of message 2 (assistant): not valid JSON: {a: 1}",
    ),
    "arguments are a list": (
        calling(function={"name": "add", "arguments": "[1]"}),
        "arguments of call 1 of message 2 (assistant) are a list, not an object",
    ),
    "an odd id": (
        calling(id=7, function={"name": "add", "arguments": {}}),
        "call 1 of message 2 (assistant) has a number as id",
    ),
    "arguments that say two things": (
        calling(function={"name": "add", "arguments": '{"a": 1, "a": 2}'}),
        'a key twice in one object: "a" has two values',
    ),
    "arguments that are no number": (
        calling(function={"name": "add", "arguments": {"a": float("nan")}}),
        "not valid JSON: call 1 of message 2 (assistant) cannot be written as JSON",
    ),
    "arguments without end": (
        calling(function={"name": "add", "arguments": nested(480)}),
        "nested too deep: call 1 of message 2 (assistant) has more than 100 levels",
    ),
    "tools without end": (
        chat(USER, ANSWER, tools=[{"type": "function", "function": {"name": "add", "a": nested(5000)}}]),
        'nested too deep: "tools" has more than 100 levels',
    ),
    "half a surrogate": (
        calling(function={"name": "add", "arguments": '{"a": "\\ud800"}'}),
        "unpaired surrogate: call 1 of message 2 (assistant)",
    ),
    "a question that calls": (
        chat({**USER, "tool_calls": [CALL]}, ANSWER),
        "not a tool call: message 1 (user) calls a tool; only the assistant can",
    ),
    "a result of no call": (
        chat(USER, {"role": "tool", "content": "4", "tool_call_id": "c2"}, ANSWER),
        'a tool result without its call: message 2 has tool_call_id "c2", no call before it has',
    ),
    "an answer with a call's id": (
        chat(USER, {**ANSWER, "tool_call_id": "c2"}),
        'a tool result without its call: message 2 (assistant) has "tool_call_id"; only a tool can',
    ),
    "nothing said and nothing called": (
        chat(USER, {"role": "assistant", "content": None, "tool_calls": []}),
        "content is not text: message 2 (assistant) has null as content",
    ),
}


@pytest.mark.parametrize("case", BAD_TOOLS)
def test_bad_tools_and_calls(case: str) -> None:
    value, expected = BAD_TOOLS[case]
    assert expected in refusal(value)


def test_nulls_of_a_table_are_not_guessed() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    value = chat(USER, {"role": "assistant", "content": None, "tool_calls": [call], "name": None}, tools=None)
    assert chat_of(value).messages[1].tool_calls[0]["function"] == {
        "name": "add",
        "arguments": {"a": 1, "b": None},
    }
    assert refusal(value, columnar=True) == (
        "not a tool call: arguments of call 1 of message 2 (assistant) have nulls; the columns of a table "
        "cannot tell null from missing; keep them as JSON text"
    )
    tools = [{"function": {"name": "add", "parameters": None}}]
    assert '"tools" has nulls' in refusal(chat(USER, ANSWER, tools=tools), columnar=True)
    assert chat_of(chat(USER, ANSWER, tools='[{"function": {"name": "a", "x": null}}]'), columnar=True).tools


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("prompt", "response"),
        ("prompt", "completion"),
        ("input", "output"),
        ("question", "answer"),
        ("instruction", "output"),
        ("instruction", "response"),
    ],
)
def test_pairs(prompt: str, response: str) -> None:
    plain = (Message("user", "2 + 2?"), Message("assistant", "4"))
    assert chat_of({prompt: "2 + 2?", response: "4", "id": 3}).messages == plain
    assert chat_of({prompt: [USER], response: [ANSWER], "messages": None}).messages == plain
    with_system = chat_of({"system": "Be brief.", prompt: "2 + 2?", response: "4"}).messages
    assert with_system == (Message("system", "Be brief."), *plain)


def test_of_a_pair_the_response_is_trained() -> None:
    turns = [USER, ANSWER, {"role": "user", "content": "3 + 3?"}]
    found = chat_of({"prompt": turns, "response": "6", "tools": [TOOL]})
    assert [message.train for message in found.messages] == [True, False, True, True]
    assert found.messages[-1] == Message("assistant", "6")
    assert found.tools == (TOOL,)


def test_a_record_with_two_forms_is_ambiguous() -> None:
    assert refusal({"messages": [USER, ANSWER], "prompt": "a", "response": "b"}) == (
        'more than one form of a chat: found "messages", "prompt" and "response"; keep one'
    )
    assert refusal({"prompt": "a", "response": "b", "completion": "c"}) == (
        'more than one form of a chat: found "prompt" and "response", "prompt" and "completion"; keep one'
    )
    assert "more than one form" in refusal({"instruction": "a", "input": "b", "output": "c"})
    assert refusal({"prompt": [USER], "response": "4", "system": "x"}) == (
        'more than one form of a chat: "system" beside messages in "prompt"'
    )
    # Half of a pair beside messages says nothing more.
    assert chat_of({"messages": [USER, ANSWER], "prompt": "2 + 2?"}).messages[1] == Message("assistant", "4")


def test_bad_pairs() -> None:
    assert refusal({"prompt": "a"}) == 'no "messages" key: keys are "prompt"'
    assert refusal({"prompt": "a", "response": " "}) == "empty content: message 2 (assistant)"
    assert refusal({"prompt": 3, "response": "b"}) == (
        "content is not text: message 1 (user) has a number as content"
    )
    assert refusal({"prompt": "a", "response": [USER]}) == "no assistant turn: roles are user, user"
    assert refusal({"prompt": [], "response": "b"}) == '"prompt" is empty'


def test_content_as_parts_is_joined_as_it_stands() -> None:
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    assert chat_of(chat({"role": "user", "content": parts}, ANSWER)).messages[0] == Message("user", "2 + 2?")


def test_what_is_to_be_trained() -> None:
    turns = [USER, {**ANSWER, "train": False}, USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]
    found = chat_of(chat({"role": "system", "content": "x", "weight": 0}, *turns)).messages
    assert [message.train for message in found] == [False, True, False, True, False, True, True]
    assert found[-1] == Message("assistant", "4")
