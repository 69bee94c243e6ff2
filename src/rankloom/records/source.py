"""The value of ``data.train``: files, globs, folders and mixtures of them, brought into a list of files."""

from __future__ import annotations

import glob
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from rankloom.config.values import WeightedSource
from rankloom.errors import UserError
from rankloom.records.pythondocs import stdlib_folder

__all__ = [
    "PYTHON_DOCS",
    "DataFile",
    "Sources",
    "data_files",
    "identity_of",
    "open_error",
    "short_path",
    "source_identity",
    "source_name",
    "source_weights",
]

PYTHON_DOCS = "python-docs"
PYTHON_DOCS_VERSION = 1  # raised when the same installation would give other records
COMPRESSED = (".gz", ".zst")

# What a setting may say: a path, or a list of paths and {"path", "weight"}.
Source: TypeAlias = str | WeightedSource | Mapping[str, object]
Sources: TypeAlias = Source | Sequence[Source]
Kind = Literal["lines", "parquet", "dataset", "python-docs"]


@dataclass(frozen=True)
class DataFile:
    """One file, or one folder saved by Hugging Face ``datasets``.

    Attributes:
        path: as it was written.
        kind: how it is read.
        source: place of the entry of the setting that named it, from 0; a glob names several files.
        split: of a folder that holds several data sets.
    """

    path: str
    kind: Kind
    source: int = 0
    split: str | None = None

    @property
    def name(self) -> str:
        return self.path if self.split is None else f"{self.path}:{self.split}"

    @property
    def folder(self) -> Path:
        """Of a saved data set."""
        return Path(self.path) if self.split is None else Path(self.path) / self.split

    @property
    def unit(self) -> str:
        """What the numbers of its records count."""
        return {"lines": "line", "python-docs": "record"}.get(self.kind, "row")


def source_weights(train: Sources) -> tuple[float, ...]:
    """The weight of each entry of the setting, 1 where none is given."""
    return tuple(source.weight for source in _entries(train))


def source_name(train: Sources) -> str:
    """What messages call all of it together."""
    names = [short_path(source.path) for source in _entries(train)]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def data_files(train: Sources, *, key: str = "data.train") -> tuple[DataFile, ...]:
    """The files of a setting in the order of their records: entries as listed, those of a glob by name.

    Args:
        train: the setting.
        key: its name, for messages.

    Raises:
        UserError: a file is missing, named twice or no regular file, a glob matches none, a folder holds no
            saved data set.
    """
    found: list[DataFile] = []
    for place, source in enumerate(_entries(train)):
        try:
            found += _files_of(source.path, place, key)
        except OSError as error:  # a name that is too long, a folder that may not be read
            raise open_error(source.path, error, key=key) from None
    seen: dict[str, str] = {}
    for file in found:
        same = file.name if file.kind == PYTHON_DOCS else f"{Path(file.path).resolve()}:{file.split or ''}"
        if same in seen:
            raise UserError(
                f"{short_path(file.name)}: is named twice in {key}; to take its records more often, give it "
                "a weight: {path: ..., weight: 2}"
            )
        seen[same] = file.name
    return tuple(found)


def source_identity(train: Sources) -> str:
    """A sha256 (hex) that changes when the records of ``load_records(train)`` can change.

    For files it is that of their bytes, so that a copy of a file elsewhere has the same identity.

    Raises:
        UserError: see `data_files`; a file cannot be read.
    """
    return hashlib.sha256("\n".join(map(identity_of, data_files(train))).encode()).hexdigest()


def short_path(path: str | Path) -> str:
    """The path as the user wrote it, its beginning cut off when it would fill a message."""
    text = str(path)
    return text if len(text) <= 120 else "..." + text[-117:]


def open_error(path: str | Path, error: OSError, *, key: str = "data.train") -> UserError:
    """The refusal for a data file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return UserError(
            f'{short_path(path)}: no such file; {key} is a JSON Lines file of chats, or "python-docs" '
            "(relative paths start at the working directory)"
        )
    return UserError(f"{short_path(path)}: cannot be read: {error.strerror or error}")


def _entries(train: Sources) -> list[WeightedSource]:
    listed = [train] if isinstance(train, str | WeightedSource | Mapping) else list(train)
    return [_entry(source) for source in listed]


def _entry(source: Source) -> WeightedSource:
    if isinstance(source, WeightedSource):
        return source
    return WeightedSource(path=source) if isinstance(source, str) else WeightedSource.model_validate(source)


def _files_of(path: str, source: int, key: str) -> Iterable[DataFile]:
    if path == PYTHON_DOCS:
        return [DataFile(path, "python-docs", source)]
    if Path(path).exists():
        return [_file(path, source, key)]
    folder, colon, split = path.rpartition(":")
    if colon and (Path(folder) / "dataset_dict.json").is_file():
        if not (Path(folder) / split / "state.json").is_file():
            raise UserError(
                f'{short_path(folder)}: has no data set "{split}"; it has {_splits(Path(folder))}'
            )
        return [DataFile(folder, "dataset", source, split)]
    if not glob.has_magic(path):
        raise open_error(path, FileNotFoundError(), key=key)
    matched = sorted(glob.glob(path, recursive=True))
    if not matched:
        raise UserError(
            f"{short_path(path)}: matches no file (relative paths start at the working directory)"
        )
    return [_file(match, source, key) for match in matched]


def _file(path: str, source: int, key: str) -> DataFile:
    if not Path(path).is_dir():
        if not Path(path).is_file():  # what is read from a pipe cannot be read again
            raise UserError(f"{short_path(path)}: is no regular file")
        return DataFile(path, "parquet" if path.endswith(".parquet") else "lines", source)
    if (Path(path) / "state.json").is_file():
        return DataFile(path, "dataset", source)
    if (Path(path) / "dataset_dict.json").is_file():
        splits = _splits(Path(path))
        raise UserError(
            f"{short_path(path)}: holds several data sets: {splits}; name one: {short_path(path)}:NAME"
        )
    raise UserError(
        f"{short_path(path)}: is a folder that Hugging Face datasets did not save (no state.json in it); "
        f"{key} can name the files in it with a glob: {short_path(path)}/*.jsonl"
    )


def _splits(folder: Path) -> str:
    return ", ".join(sorted(path.parent.name for path in folder.glob("*/state.json"))) or "none"


def identity_of(file: DataFile) -> str:
    """A sha256 (hex) over the bytes of a file and how it is read. Raises UserError if it cannot be read."""
    suffix = Path(file.path).suffix if file.kind == "lines" else ""
    how = f"{file.kind} {suffix if suffix in COMPRESSED else ''} {_digest(file)}"
    return hashlib.sha256(how.encode()).hexdigest()


def _digest(file: DataFile) -> str:
    if file.kind == PYTHON_DOCS:
        text = f"{PYTHON_DOCS}\n{PYTHON_DOCS_VERSION}\n{sys.version}\n{stdlib_folder()}"
        return hashlib.sha256(text.encode()).hexdigest()
    if file.kind != "dataset":
        return _sha256(Path(file.path))
    parts = sorted(path for path in file.folder.iterdir() if path.is_file())
    return hashlib.sha256("\n".join(f"{p.name} {_sha256(p)}" for p in parts).encode()).hexdigest()


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise open_error(path, error) from None
