"""Reading chat records from a JSON Lines file, with the physical line of everything that is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankloom.errors import UserError
from rankloom.records.record import BadRecordError, ChatRecord, Message, RecordSet, messages_of

__all__ = ["BAD_RECORDS", "bad_line", "nothing_left", "open_error", "read_jsonl", "scan_jsonl", "short_path"]

BAD_RECORDS = ("error", "skip")
BOM = b"\xef\xbb\xbf"


def read_jsonl(path: str | Path, *, bad_records: str = "error") -> RecordSet:
    """Reads ``{"messages": [{"role", "content"}, ...]}`` records, one JSON object a line.

    A line ends at ``\\n`` (a ``\\r`` before it is dropped), so that line numbers are those of an editor; a
    UTF-8 byte order mark and blank lines are passed over.

    Args:
        path: the file.
        bad_records: "error" raises at the first bad line, "skip" counts bad lines by reason.

    Raises:
        UserError: the file cannot be read, a line is bad (file, line and reason are named), or no record is
            left.
    """
    if bad_records not in BAD_RECORDS:
        raise UserError(f'data.bad_records is "{bad_records}"; use "error" or "skip"')
    records: list[ChatRecord] = []
    skipped: Counter[str] = Counter()
    first_lines: dict[str, int] = {}
    source = str(path)
    for line, found in scan_jsonl(path):
        if not isinstance(found, BadRecordError):
            records.append(ChatRecord(index=len(records), messages=found, source=source, line=line))
        elif bad_records == "error":
            raise UserError(bad_line(path, line, found))
        else:
            skipped[found.reason] += 1
            first_lines.setdefault(found.reason, line)
    if not records:
        raise UserError(nothing_left(path, skipped, first_lines))
    return RecordSet(records=records, skipped=skipped, first_lines=first_lines)


def scan_jsonl(
    path: str | Path, *, limit_bytes: int | None = None
) -> Iterator[tuple[int, tuple[Message, ...] | BadRecordError]]:
    """The physical line and the messages of every record, or what is wrong with it; blank lines are left out.

    Stops at the end of the line that reaches ``limit_bytes``. Raises UserError for a file that cannot be
    read.
    """
    read_bytes = 0
    for line, raw in _lines(Path(path)):
        try:
            yield line, _parse(raw)
        except BadRecordError as problem:
            yield line, problem
        read_bytes += len(raw) + 1
        if limit_bytes is not None and read_bytes >= limit_bytes:
            return


def short_path(path: str | Path) -> str:
    """The path as the user wrote it, its beginning cut off when it would fill a message."""
    text = str(path)
    return text if len(text) <= 120 else "..." + text[-117:]


def open_error(path: str | Path, error: OSError) -> UserError:
    """The refusal for a data file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return UserError(
            f'{short_path(path)}: no such file; data.train is a JSON Lines file of chats, or "python-docs" '
            "(relative paths start at the working directory)"
        )
    if isinstance(error, IsADirectoryError):
        return UserError(f"{short_path(path)}: is a folder; data.train names one JSON Lines file")
    return UserError(f"{short_path(path)}: cannot be read: {error.strerror or error}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = (raw.removeprefix(BOM) if number == 1 else raw).strip(b" \t\r\n")
                if text:
                    yield number, text
    except OSError as error:
        raise open_error(path, error) from None


def _parse(raw: bytes) -> tuple[Message, ...]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = (
            "this looks like UTF-16"
            if wide
            else f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line"
        )
        raise BadRecordError("not valid UTF-8", f"{hint}; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        hint = "; each line must be one whole JSON object" if raw in (b"[", b"{") or raw[-1:] == b"," else ""
        raise BadRecordError("not valid JSON", f"{error.msg} at column {error.colno}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecordError("not valid JSON", f"{type(error).__name__}, {str(error)[:100]}") from None
    return messages_of(value)


def bad_line(path: str | Path, line: int, problem: BadRecordError) -> str:
    """The refusal of one line."""
    return (
        f"{short_path(path)}, line {line}: {problem}. "
        "Mend the line, or leave bad records out with data.bad_records: skip"
    )


def nothing_left(path: str | Path, skipped: Counter[str], first_lines: Mapping[str, int]) -> str:
    """The refusal of a file without a usable record; ``first_lines``: where each reason was first met."""
    if not skipped:
        return f"{short_path(path)}: holds no record; it is empty or has only blank lines"
    (reason, count), *others = skipped.most_common()
    more = f" and {sum(n for _, n in others)} for other reasons" if others else ""
    return (
        f"{short_path(path)}: holds no usable record; all {skipped.total()} lines were skipped, "
        f"{count} of them because: {reason} (first at line {first_lines[reason]}){more}"
    )
