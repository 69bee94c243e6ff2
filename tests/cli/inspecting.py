"""A few chats, and ``rankloom inspect`` on them, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from transformers import AutoTokenizer

from rankloom.cli import main

CHATS: list[Any] = [
    [("system", "Answer briefly."), ("user", "What is 2 + 2?"), ("assistant", "4")],
    [("user", "Two primes?"), ("assistant", "2, 3."), ("user", "More?"), ("assistant", "5, 7.")],
    [("user", "Hello in Japanese?"), ("assistant", "Say\n\n\tこんにちは")],
    [("user", "Is <|end|> a token?"), ("assistant", "As <|end|> it is text.")],
    [("user", "Thanks!"), ("assistant", "You are welcome.")],
    [("user", "Count."), ("assistant", "One, two, three. " * 3)],
]


def write_chats(path: Path, chats: list[list[tuple[str, str]]]) -> None:
    lines = [json.dumps({"messages": [{"role": r, "content": c} for r, c in chat]}) for chat in chats]
    path.write_text("\n".join(lines) + "\n")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "run.yaml", *arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    return [line.rstrip() for line in lines]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def reference(place: int) -> tuple[list[int], list[bool]]:
    """Ids and mask of a chat by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained("model")
    messages = [{"role": role, "content": content} for role, content in CHATS[place]]
    made: Any = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return made["input_ids"], [bool(flag) for flag in made["assistant_masks"]]
