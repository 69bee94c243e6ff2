"""The data of a job: the first problems of each file, with their lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankloom.config.energon import ENERGON
from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.config.schema import DataSection
from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS, DataFile, Sources, Tally, data_files
from rankloom.records.energon import energon_data
from rankloom.records.jsonl import Bound
from rankloom.records.reading import nothing_left, scan_file
from rankloom.records.record import BadRecordError
from rankloom.records.source import short_path, source_weights

__all__ = ["LARGEST_READ_BYTES", "check_data"]

LARGEST_READ_BYTES = 64 * 2**20  # of a larger file the beginning is read
MOST_ROWS = 10_000  # of a table
MAX_FILES = 8  # of a longer list the first are read
MAX_SHOWN = 5
TRAIN, VALIDATION, BAD_RECORDS = "data.train", "data.validation", "data.bad_records"
PATH = "data.path"


@dataclass
class _Seen:
    """What reading a file met: usable records, bad ones by reason, and the refusals of the first of them."""

    file: DataFile
    num_records: int = 0
    tally: Tally = field(default_factory=Tally)
    refusals: list[str] = field(default_factory=list)
    cut: bool = False


def check_data(examined: Examined) -> Iterator[Finding]:
    """Findings about ``data.train``, ``data.validation`` and ``data.path``: bad records are errors, or
    warnings where they are to be skipped."""
    section = examined.get(DataSection)
    if section is None:
        return
    yield from _settings(section, examined)
    skips = section.bad_records == "skip"
    for key, sources in ((TRAIN, section.train), (VALIDATION, section.validation)):
        if sources is not None:
            yield from _files(key, sources, skips=skips, where=examined.where(key))
    if section.source == ENERGON and section.path is not None:
        yield from _energon(section.path, skips=skips, where=examined.where(PATH))


def _energon(path: str, *, skips: bool, where: str) -> Iterator[Finding]:
    """Whether the data set is prepared, and the chats of one that is a JSON Lines file."""
    try:
        found = energon_data(path)
    except UserError as error:
        yield Finding("error", "data", str(error), (PATH,), where)
        return
    if found.kind == "jsonl":
        yield from _files(PATH, path, skips=skips, where=where)


def _settings(section: DataSection, examined: Examined) -> Iterator[Finding]:
    if section.validation is None:
        return
    if section.validation_split:
        message = (
            f"data.validation_split {section.validation_split:g} and data.validation are both set; use one"
        )
        keys = (VALIDATION, "data.validation_split")
        yield Finding("error", "data", message, keys, examined.where(*keys))
    if any(weight != 1 for weight in source_weights(section.validation)):
        message = "data.validation has weights; every validation record is evaluated once, remove them"
        yield Finding("error", "data", message, (VALIDATION,), examined.where(VALIDATION))


def _files(key: str, sources: Sources, *, skips: bool, where: str) -> Iterator[Finding]:
    try:
        files = [file for file in data_files(sources, key=key) if file.kind != PYTHON_DOCS]
    except UserError as error:
        yield Finding("error", "data", str(error), (key,), where)
        return
    except OSError as error:
        message = f"{short_path(str(error.filename))}: cannot be read: {error.strerror}"
        yield Finding("error", "data", message, (key,), where)
        return
    for file in files[:MAX_FILES]:
        try:
            seen = _read(file)
        except UserError as error:
            yield Finding("error", "data", str(error), (key,), where)
            continue
        yield from _findings(seen, key, skips=skips, where=where)
    if len(files) > MAX_FILES:
        message = f"{key}: the first {MAX_FILES} of {len(files)} files were looked at"
        yield Finding("note", "data", message, (key,), where)


def _findings(seen: _Seen, key: str, *, skips: bool, where: str) -> Iterator[Finding]:
    if seen.num_records == 0 and (skips or not seen.tally.skipped):
        yield Finding("error", "data", nothing_left(seen.file, seen.tally), (key,), where)
    elif seen.tally.skipped and skips:
        yield Finding("warning", "data", _skipped(seen), (key, BAD_RECORDS), where)
    else:
        yield from (Finding("error", "data", line, (key,), where) for line in _listed(seen))
    if seen.cut:
        yield Finding("note", "data", _looked_at(seen.file), (key,), where)


def _read(file: DataFile) -> _Seen:
    seen = _Seen(file)
    if file.kind == "lines" and not Path(file.path).is_file():  # a pipe would be empty when training reads it
        raise UserError(f"{short_path(file.name)}: is no regular file")
    bound = Bound(LARGEST_READ_BYTES, MOST_ROWS)
    for number, found in scan_file(file, bound=bound):
        if not isinstance(found, BadRecordError):
            seen.num_records += 1
            continue
        seen.tally.add(found.reason, file, number)
        if len(seen.refusals) < MAX_SHOWN:
            seen.refusals.append(f"{short_path(file.name)}, {file.unit} {number}: {found}")
    seen.cut = bound.reached
    return seen


def _looked_at(file: DataFile) -> str:
    name = short_path(file.name)
    if file.kind != "lines":
        return f"{name}: the first {MOST_ROWS:,} rows were looked at"
    first = LARGEST_READ_BYTES // 2**20
    if file.path.endswith((".gz", ".zst")):
        return f"{name}: the first {first} MiB of its text were looked at"
    size = Path(file.path).stat().st_size
    return f"{name}: the first {first} MiB of {size // 2**20} MiB were looked at"


def _listed(seen: _Seen) -> Sequence[str]:
    """The first bad records, how many there are besides, and in the last line what to do."""
    lines, unit = list(seen.refusals), seen.file.unit
    if left_out := seen.tally.skipped.total() - len(lines):
        lines.append(f"{short_path(seen.file.name)}: {left_out} more bad {unit}{'s' * (left_out > 1)}")
    which = "it, or leave it out" if len(lines) == 1 else "them, or leave them out"
    return [*lines[:-1], *(f"{line}; mend {which} with data.bad_records: skip" for line in lines[-1:])]


def _skipped(seen: _Seen) -> str:
    unit = seen.file.unit
    reasons = ", ".join(
        f"{reason} ({count}, first at {unit} {seen.tally.first[reason][1]})"
        for reason, count in seen.tally.skipped.most_common()
    )
    bad = seen.tally.skipped.total()
    return (
        f"{short_path(seen.file.name)}: {bad} of {bad + seen.num_records} {unit}s will be skipped: {reasons}"
    )
