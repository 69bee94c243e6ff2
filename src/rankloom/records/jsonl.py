"""One line of a JSON Lines file to a chat, and one file to its chats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankloom.records.chat import Chat, chat_of
from rankloom.records.json_text import json_value
from rankloom.records.lines import MAX_LINE_BYTES, numbered_lines
from rankloom.records.record import BadRecordError
from rankloom.records.source import short_path

__all__ = ["Bound", "scan_jsonl", "short_path"]


@dataclass
class Bound:
    """How much of a file is read: bytes of text, or rows of a table; ``reached``: there was more."""

    num_bytes: int
    rows: int
    reached: bool = False


def scan_jsonl(
    path: str | Path, *, bound: Bound | None = None
) -> Iterator[tuple[int, Chat | BadRecordError]]:
    """The physical line and the chat of every record, or what is wrong with it; blank lines are left out.

    Stops after the line that reaches the bound. Raises UserError for a file that cannot be read.
    """
    read_bytes = 0
    for line, raw in numbered_lines(Path(path)):
        if bound is not None and read_bytes >= bound.num_bytes:
            bound.reached = True
            return
        try:
            yield line, _parse(raw)
        except BadRecordError as problem:
            yield line, problem
        read_bytes += MAX_LINE_BYTES if raw is None else len(raw) + 1


def _parse(raw: bytes | None) -> Chat:
    if raw is None:
        detail = f"no chat has more than {MAX_LINE_BYTES // 2**20} MiB; a line end may be missing"
        raise BadRecordError("a gigantic line", detail)
    return chat_of(json_value(raw))
