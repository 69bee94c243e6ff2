"""The rows of Parquet files and of folders saved by Hugging Face ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankloom.errors import UserError
from rankloom.records.chat import PAIRS
from rankloom.records.extra import extra_module
from rankloom.records.source import DataFile, open_error, short_path

__all__ = ["rows_of_dataset", "rows_of_parquet"]

COLUMNS = frozenset(
    {"messages", "tools", "system", "functions", "function_call", *(c for p in PAIRS for c in p)}
)
BATCH_ROWS = 256


def rows_of_parquet(file: DataFile) -> Iterator[dict[str, object]]:
    """The rows as mappings of the columns that a chat can have; the file is read a row group at a time.

    Raises:
        UserError: it cannot be read, or has no such column.
    """
    parquet = extra_module("pyarrow.parquet", what="reading Parquet files")
    try:
        with parquet.ParquetFile(file.path) as table:
            columns = _columns(file, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield from batch.to_pylist()
    except OSError as error:
        if error.errno is not None:
            raise open_error(file.path, error) from None
        raise _broken(file, error) from None
    except ValueError as error:  # pyarrow.ArrowInvalid is one
        raise _broken(file, error) from None


def rows_of_dataset(file: DataFile) -> Iterator[dict[str, object]]:
    """The rows of a saved data set, in its order, mapped from disk. Raises UserError as `rows_of_parquet`."""
    datasets = extra_module("datasets", what="reading folders of Hugging Face datasets")
    try:
        table: Any = datasets.load_from_disk(str(file.folder))
        columns = _columns(file, table.column_names)
        rows = table.select_columns(columns).with_format("arrow")
        for batch in rows.iter(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()
    except UserError:
        raise
    except Exception as error:  # the library has no error of its own for a folder that is damaged
        raise _broken(file, error) from None


def _columns(file: DataFile, names: list[str]) -> list[str]:
    columns = [name for name in names if name in COLUMNS]
    if not columns:
        listed = ", ".join(names)[:120]
        raise UserError(
            f'{short_path(file.name)}: has no column of chats such as "messages"; it has {listed}'
        )
    return columns


def _broken(file: DataFile, error: Exception) -> UserError:
    what = "Parquet" if file.kind == "parquet" else "Hugging Face datasets"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return UserError(f"{short_path(file.name)}: cannot be read by {what}: {reason}")
