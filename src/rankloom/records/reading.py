"""Reading the records of a setting, one at a time: bad ones end the run, or are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankloom.errors import UserError
from rankloom.records.chat import Chat, chat_of
from rankloom.records.jsonl import Bound, scan_jsonl
from rankloom.records.pythondocs import python_docs
from rankloom.records.record import BadRecordError, ChatRecord, RecordSet, place_of
from rankloom.records.source import PYTHON_DOCS, DataFile, Sources, data_files, short_path
from rankloom.records.tables import rows_of_dataset, rows_of_parquet

__all__ = [
    "RecordStream",
    "Tally",
    "bad_line",
    "load_records",
    "nothing_left",
    "read_jsonl",
    "scan_file",
    "stream_records",
]

BAD_RECORDS = ("error", "skip")


@dataclass
class Tally:
    """Records that were left out, by reason, and where each reason was first met: file and line or row."""

    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[DataFile, int]] = field(default_factory=dict)

    def add(self, reason: str, file: DataFile, number: int) -> None:
        self.skipped[reason] += 1
        self.first.setdefault(reason, (file, number))


def stream_records(
    files: Sequence[DataFile], tally: Tally, *, bad_records: str = "error"
) -> Iterator[ChatRecord]:
    """The records of all files, in order; no more than one is held.

    Args:
        files: see `data_files`.
        tally: bad records are counted here when ``bad_records`` is "skip"; "error" raises at the first.

    Raises:
        UserError: a file cannot be read, a record is bad (file, line and reason are named), or a file has no
            record that can be used.
    """
    if bad_records not in BAD_RECORDS:
        raise UserError(f'data.bad_records is "{bad_records}"; use "error" or "skip"')
    for place, file in enumerate(files):
        if file.kind == PYTHON_DOCS:
            yield from _placed(python_docs(), place)
            continue
        mine = Tally()
        index = 0
        for number, found in scan_file(file):
            if not isinstance(found, BadRecordError):
                yield ChatRecord(
                    index, found.messages, file.name, number, tools=found.tools, file=place, unit=file.unit
                )
                index += 1
            elif bad_records == "error":
                raise UserError(bad_line(file, number, found))
            else:
                mine.add(found.reason, file, number)
                tally.add(found.reason, file, number)
        if index == 0:
            raise UserError(nothing_left(file, mine))


def _placed(records: list[ChatRecord], place: int) -> Iterator[ChatRecord]:
    return (ChatRecord(r.index, r.messages, r.source, r.line, file=place) for r in records)


@dataclass(frozen=True)
class RecordStream:
    """`stream_records`, from the beginning each time it is iterated over."""

    files: Sequence[DataFile]
    tally: Tally
    bad_records: str = "error"

    def __iter__(self) -> Iterator[ChatRecord]:
        return stream_records(self.files, self.tally, bad_records=self.bad_records)


def load_records(train: Sources, *, bad_records: str = "error") -> RecordSet:
    """The records named by ``data.train`` as a list.

    Raises:
        UserError: see `data_files`, `stream_records` and `python_docs`.
    """
    tally = Tally()
    records = list(stream_records(data_files(train), tally, bad_records=bad_records))
    return RecordSet(records, tally.skipped, {reason: number for reason, (_, number) in tally.first.items()})


def read_jsonl(path: str | Path, *, bad_records: str = "error") -> RecordSet:
    """The records of one file. Raises UserError as `load_records`."""
    return load_records(str(path), bad_records=bad_records)


def scan_file(file: DataFile, *, bound: Bound | None = None) -> Iterator[tuple[int, Chat | BadRecordError]]:
    """Number and chat of every record of a file, or what is wrong with it; up to the bound.

    Raises UserError for a file that cannot be read.
    """
    if file.kind == "lines":
        yield from scan_jsonl(file.path, bound=bound)
        return
    rows = rows_of_parquet(file) if file.kind == "parquet" else rows_of_dataset(file)
    for number, row in enumerate(rows):
        if bound is not None and number >= bound.rows:
            bound.reached = True
            return
        try:
            yield number, chat_of(row, columnar=True)
        except BadRecordError as problem:
            yield number, problem


def bad_line(file: DataFile, number: int, problem: BadRecordError) -> str:
    """The refusal of one line or row."""
    return (
        f"{place_of(short_path(file.name), file.unit, number)}: {problem}. "
        f"Mend the {file.unit}, or leave bad records out with data.bad_records: skip"
    )


def nothing_left(file: DataFile, tally: Tally) -> str:
    """The refusal of a file without a usable record."""
    if not tally.skipped:
        blank = "it is empty or has only blank lines" if file.unit == "line" else "it has no row"
        return f"{short_path(file.name)}: holds no record; {blank}"
    (reason, count), *others = tally.skipped.most_common()
    total, more = tally.skipped.total(), ""
    if others:
        more = f" and {sum(n for _, n in others):,} for other reasons"
    what = f"its one {file.unit} was skipped" if total == 1 else f"all {total:,} {file.unit}s were skipped"
    share = "" if total == count else f", {count:,} of them"
    return (
        f"{short_path(file.name)}: holds no usable record; {what}{share} because: {reason} (first at "
        f"{file.unit} {tally.first[reason][1]}){more}"
    )
