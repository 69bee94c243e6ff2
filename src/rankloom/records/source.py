"""The value of ``data.train``: the name of a built-in set or a file."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from rankloom.records.jsonl import open_error, read_jsonl
from rankloom.records.pythondocs import python_docs, stdlib_folder
from rankloom.records.record import RecordSet

__all__ = ["PYTHON_DOCS", "load_records", "source_identity"]

PYTHON_DOCS = "python-docs"
PYTHON_DOCS_VERSION = 1  # raised when the same installation would give other records


def load_records(train: str, *, bad_records: str = "error") -> RecordSet:
    """The records named by ``data.train``: "python-docs" or the path of a JSON Lines file.

    Raises:
        UserError: see `read_jsonl` and `python_docs`.
    """
    if train == PYTHON_DOCS:
        return RecordSet(records=python_docs())
    return read_jsonl(train, bad_records=bad_records)


def source_identity(train: str) -> str:
    """A sha256 (hex) that changes when the records of ``load_records(train)`` can change.

    For a file it is that of its bytes, so that a copy of the file elsewhere has the same identity.

    Raises:
        UserError: the file cannot be read.
    """
    if train == PYTHON_DOCS:
        text = f"{PYTHON_DOCS}\n{PYTHON_DOCS_VERSION}\n{sys.version}\n{stdlib_folder()}"
        return hashlib.sha256(text.encode()).hexdigest()
    try:
        with Path(train).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise open_error(train, error) from None
