"""Every way a line of a chat file can be wrong, with the line it is named by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankloom.errors import UserError
from rankloom.records import load_records, read_jsonl, source_identity

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}'


def chat(*turns: tuple[str, object]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})


def turn_with(**keys: object) -> str:
    """A chat with more keys in its answer."""
    answer = {"role": "assistant", "content": "b", **keys}
    return json.dumps({"messages": [{"role": "user", "content": "a"}, answer]})


def write(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "chats.jsonl"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


BAD_LINES: dict[str, tuple[str | bytes, str]] = {
    "not json": ("{oops}", "not valid JSON"),
    "cut off": (GOOD[:-1], "not valid JSON"),
    "pretty printed": ("{", "each line must be one whole JSON object"),
    "endless nesting": ("[" * 200_000, "not valid JSON"),
    "huge number": ("1" * 5000, "not valid JSON"),
    "two messages": (
        GOOD[:-1] + ', "messages": []}',
        'a key twice in one object: "messages" has two values',
    ),
    "two contents": (
        '{"messages": [{"role": "assistant", "content": "a", "content": "b"}]}',
        'a key twice in one object: "content" has two values',
    ),
    "list": ("[1, 2]", "not a JSON object: found a list"),
    "number": ("17", "not a JSON object: found a number"),
    "null": ("null", "not a JSON object: found null"),
    "no messages": ('{"prompt": "a", "text": "b"}', 'no "messages" key: keys are "prompt", "text"'),
    "messages is text": ('{"messages": "hi"}', '"messages" is not a list: found text'),
    "no turns": ('{"messages": []}', '"messages" is empty'),
    "turn is text": ('{"messages": ["hi"]}', "message 1 is text"),
    "role": (chat(("user", "a"), ("bot", "b")), 'message 2 has role "bot", expected one of system, user'),
    "no role": ('{"messages": [{"content": "a"}]}', "message 1 has null as role"),
    "content is null": (
        chat(("user", "a"), ("assistant", None)),
        "message 2 (assistant) has null as content",
    ),
    "content is an image": (
        chat(("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])),
        'content is not text: message 1 (user) has a part of type "image_url" in its content',
    ),
    "content is a part without text": (
        chat(("user", [{"type": "text"}])),
        'message 1 (user) has a part of type "text" in its content',
    ),
    "content is empty parts": (chat(("user", [])), "empty content: message 1 (user)"),
    "content is blank": (chat(("user", "a"), ("assistant", " \n")), "empty content: message 2 (assistant)"),
    "no answer": (chat(("system", "a"), ("user", "b")), "no assistant turn: roles are system, user"),
    "surrogate": (chat(("user", "\ud800"), ("assistant", "b")), "unpaired surrogate: message 1 (user)"),
    "not utf-8": (GOOD.encode().replace(b"Hello", b"H\xe9llo"), "not valid UTF-8: byte 0xe9 at byte"),
    "utf-16": (GOOD.encode("utf-16"), "this looks like UTF-16"),
    "half a weight": (
        turn_with(weight=0.5),
        'wrong choice of what to train: message 2 (assistant) has "weight" 0.5, expected 1 or 0',
    ),
    "a weight in words": (turn_with(weight=True), 'has "weight" true, expected 1 or 0'),
    "train as a number": (turn_with(train=0), 'has "train" 0, expected true or false'),
    "two choices": (turn_with(train=True, weight=0), 'message 2 (assistant): "train" and "weight" disagree'),
    "a question to be trained": (
        '{"messages": [{"role": "user", "content": "a", "train": true}]}',
        'message 1 (user) has "train" true; only turns of the assistant are chosen',
    ),
    "parts to be trained": (turn_with(train_detail=[{"begin_offset": 0}]), 'has "train_detail"'),
    "reasoning": (
        turn_with(reasoning_content="hm"),
        'more than text and tool calls is not supported: message 2 (assistant) has "reasoning_content"',
    ),
    "refusal": (turn_with(refusal="no"), 'message 2 (assistant) has "refusal"'),
    "name": (turn_with(name=3), '"name" is not text: message 2 (assistant) has a number there'),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_by_file_and_line(case: str, tmp_path: Path) -> None:
    line, reason = BAD_LINES[case]
    # A blank line before it counts, as it does in an editor. (UTF-16 is only recognised where a file starts.)
    path = write(tmp_path, line) if case == "utf-16" else write(tmp_path, GOOD, "", line)
    with pytest.raises(UserError) as caught:
        read_jsonl(path)
    text = str(caught.value)
    assert f"chats.jsonl, line {1 if case == 'utf-16' else 3}: " in text
    assert reason in text
    assert "data.bad_records: skip" in text
    assert len(text) < 400


@pytest.mark.parametrize("key", ["x" * 5000, "\x1b[31m" * 100])
def test_a_message_stays_short_and_printable(key: str, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    path = write(folder, chat((key, "a")))
    with pytest.raises(UserError) as caught:
        read_jsonl(path)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_keys_that_change_nothing_pass(tmp_path: Path) -> None:
    harmless = turn_with(weight=1.0, train=True, name=None, reasoning_content="", id=7, tool_calls=[])
    said_twice = turn_with()[:-1] + ', "score": NaN, "id": 7, "id": 7}'
    path = write(tmp_path, turn_with(), harmless, said_twice)
    first, *others = (record.messages for record in read_jsonl(path).records)
    assert others == [first, first]


def test_skipping_counts_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "{", GOOD, "[", "17", GOOD, chat(("user", "a")))
    found = read_jsonl(path, bad_records="skip")
    assert [record.line for record in found.records] == [2, 5]
    assert [record.index for record in found.records] == [0, 1]
    assert found.skipped == {"not valid JSON": 2, "not a JSON object": 1, "no assistant turn": 1}
    assert found.first_lines == {"not valid JSON": 1, "not a JSON object": 4, "no assistant turn": 6}


def test_bom_crlf_blank_lines_and_odd_line_separators_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    odd = '{"messages": [{"role": "assistant", "content": "a\u2028b\x85c"}]}'
    path.write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\r\n\r\n \t\r\n{odd}\r\n{GOOD}".encode())
    records = read_jsonl(path).records
    assert [record.line for record in records] == [1, 4, 5]
    assert records[1].messages[0].content == "a\u2028b\x85c"
    assert records[0].messages[1].content == "Hello"


def test_joined_files_have_a_mark_at_each_beginning(tmp_path: Path) -> None:
    """As `cat` joins files of Windows programs."""
    path = tmp_path / "chats.jsonl"
    path.write_bytes(2 * (b"\xef\xbb\xbf" + f"{GOOD}\r\n{GOOD}\r\n".encode()))
    assert [record.line for record in read_jsonl(path).records] == [1, 2, 3, 4]


def test_a_missing_file(tmp_path: Path) -> None:
    for read in (load_records, source_identity):
        with pytest.raises(UserError, match=r'nowhere.jsonl: no such file; .*"python-docs"'):
            read(str(tmp_path / "nowhere.jsonl"))


def test_a_folder(tmp_path: Path) -> None:
    for read in (load_records, source_identity):
        with pytest.raises(
            UserError, match=r"is a folder that Hugging Face datasets did not save .*\*\.jsonl"
        ):
            read(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" \r\n"])
def test_an_empty_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"chats.jsonl: holds no record; it is empty"):
        read_jsonl(path)


def test_nothing_left_after_skipping(tmp_path: Path) -> None:
    path = write(tmp_path, "{", "17", "{")
    expected = (
        r"all 3 lines were skipped, 2 of them because: not valid JSON \(first at line 1\) and 1 for other"
    )
    with pytest.raises(UserError, match=expected):
        read_jsonl(path, bad_records="skip")


def test_an_unknown_policy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'data\.bad_records is "ignore"; use "error" or "skip"'):
        read_jsonl(write(tmp_path, GOOD), bad_records="ignore")


def test_identity_follows_the_bytes_not_the_place(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    assert source_identity(str(write(first, GOOD))) == source_identity(str(write(second, GOOD)))
    assert source_identity(str(write(first, GOOD))) != source_identity(str(write(second, GOOD + " ")))
