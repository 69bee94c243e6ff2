"""The data file of a job: its first problems, with their lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.config.schema import DataSection
from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS
from rankloom.records.jsonl import nothing_left, scan_jsonl, short_path
from rankloom.records.record import BadRecordError

__all__ = ["LARGEST_READ_BYTES", "check_data"]

LARGEST_READ_BYTES = 64 * 2**20  # of a larger file the beginning is read
MAX_SHOWN = 5
TRAIN, BAD_RECORDS = "data.train", "data.bad_records"


@dataclass
class _Seen:
    """What reading a file met: usable records, bad lines by reason, and the refusals of the first of them."""

    num_records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first_lines: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def check_data(examined: Examined) -> Iterator[Finding]:
    """Findings about ``data.train``: bad lines are errors, or warnings where they are to be skipped."""
    section = examined.get(DataSection)
    if section is None or section.train in (None, PYTHON_DOCS):
        return
    file, skips = Path(str(section.train)), section.bad_records == "skip"
    where = examined.where(TRAIN)
    try:
        seen = _read(file)
    except UserError as error:
        yield Finding("error", "data", str(error), (TRAIN,), where)
        return
    if seen.num_records == 0 and (skips or not seen.reasons):
        message = nothing_left(file, seen.reasons, seen.first_lines)
        yield Finding("error", "data", message, (TRAIN,), where)
    elif seen.reasons and skips:
        yield Finding("warning", "data", _skipped(file, seen), (TRAIN, BAD_RECORDS), where)
    else:
        yield from (Finding("error", "data", line, (TRAIN,), where) for line in _listed(file, seen))
    size = file.stat().st_size
    if size > LARGEST_READ_BYTES:
        read = f"the first {LARGEST_READ_BYTES / 2**20:.3g} of {size / 2**20:.3g} MiB were looked at"
        yield Finding("note", "data", f"{short_path(file)}: {read}", (TRAIN,), where)


def _read(file: Path) -> _Seen:
    seen = _Seen()
    if _is_special(file):  # a pipe would be empty when training reads it
        raise UserError(f"{short_path(file)}: is no regular file; data.train names one JSON Lines file")
    for line, found in scan_jsonl(file, limit_bytes=LARGEST_READ_BYTES):
        if not isinstance(found, BadRecordError):
            seen.num_records += 1
            continue
        seen.reasons[found.reason] += 1
        seen.first_lines.setdefault(found.reason, line)
        if len(seen.refusals) < MAX_SHOWN:
            seen.refusals.append(f"{short_path(file)}, line {line}: {found}")
    return seen


def _is_special(file: Path) -> bool:
    try:
        return file.exists() and not (file.is_file() or file.is_dir())
    except OSError:  # reading it says what is wrong
        return False


def _listed(file: Path, seen: _Seen) -> list[str]:
    left_out = seen.reasons.total() - len(seen.refusals)
    lines = list(seen.refusals)
    if left_out:
        lines.append(f"{short_path(file)}: {left_out} more bad line{'s' * (left_out > 1)}")
    which = "it, or leave it out" if len(lines) == 1 else "them, or leave them out"
    return [*lines[:-1], *(f"{line}; mend {which} with data.bad_records skip" for line in lines[-1:])]


def _skipped(file: Path, seen: _Seen) -> str:
    reasons = ", ".join(
        f"{count} {reason} (first at line {seen.first_lines[reason]})"
        for reason, count in seen.reasons.most_common()
    )
    lines = seen.reasons.total()
    return f"{short_path(file)}: {lines} of {lines + seen.num_records} lines will be skipped: {reasons}"
