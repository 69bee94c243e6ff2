"""One record of the training data: its text, its tokens, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankloom.config import ResolvedConfig
from rankloom.data.dataset import NOTHING_TRAINED, TOO_LONG
from rankloom.data.encoding import ChatEncoder
from rankloom.data.inspect.texts import TokenTexts
from rankloom.data.prepare import recipe_of
from rankloom.data.template import Span
from rankloom.data.tokenized import Tokenized, tokenized
from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS, ChatRecord, DataFile, data_files
from rankloom.records.pythondocs import python_docs
from rankloom.records.reading import scan_file
from rankloom.records.record import BadRecordError
from rankloom.records.source import short_path

__all__ = ["RecordView", "Records"]

MAX_NAMES = 4


@dataclass(frozen=True)
class RecordView:
    """One record.

    Attributes:
        sample: its place among the records that have tokens, from 0; None for one that has none.
        name: its file and line.
        left_out: why it is not trained on; "" if it is.
        num_kept: tokens that are trained on or lead to those; fewer than all where the end is cut off.
        text: the rendered chat.
        spans: characters of it that are trained, [start, stop).
        spans_by: "markers" of the template, "renderings" of the beginnings of the chat, or "all" of it.
        ids, texts, special, trained: its tokens, see `TokenTexts`; trained are those to be predicted.
    """

    sample: int | None
    name: str
    left_out: str
    num_kept: int = 0
    text: str = ""
    spans: tuple[Span, ...] = ()
    spans_by: str = ""
    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    special: tuple[bool, ...] = ()
    trained: tuple[bool, ...] = ()


class Records:
    """The records of ``data.train``, those that do not fit included.

    Raises:
        UserError: as `rankloom.data.prepare.prepare` for data and tokenizers that cannot be used.
    """

    def __init__(self, resolved: ResolvedConfig) -> None:
        if resolved.data.train is None:
            raise UserError('data.train is not set; name a JSON Lines file of chats, or "python-docs"')
        self._settings = resolved.data
        self._files = data_files(resolved.data.train)
        self._found: Tokenized = tokenized(
            resolved.data.train,
            recipe_of(
                model_path=resolved.model.path,
                model_config=resolved.model.config,
                bad_records=resolved.data.bad_records,
                train_on=resolved.data.train_on,
                cache_dir=resolved.data.cache_dir,
            ),
        )
        self._whole = self._found.dataset

    def __len__(self) -> int:
        return len(self._whole)

    def sample(self, sample: int) -> RecordView:
        """The record at a place, from 0. Raises UserError with the range where there is none."""
        if not 0 <= sample < len(self):
            raise UserError(
                f"--sample {sample}: {self._whole.source} has {len(self):,} records, 0 to {len(self) - 1}"
            )
        ids, trained = self._whole.ids(sample), self._whole.trained(sample)
        record = self._read(int(self._whole.file_of[sample]), int(self._whole.numbers[sample]))
        assert isinstance(record, ChatRecord), "the cache is of these very files"
        text, spans = self._encoder.template.spans(record.messages, record.tools)
        tokens = TokenTexts.of(self._found.tokenizer, ids.tolist())
        left_out, num_kept = self._fate(sample, trained)
        return RecordView(
            sample=sample,
            name=self._whole.record_name(sample),
            left_out=left_out,
            num_kept=num_kept,
            text=text,
            spans=tuple(spans),
            spans_by=self._spans_by,
            ids=tuple(tokens.ids),
            texts=tuple(tokens.texts),
            special=tuple(tokens.special),
            trained=tuple(trained.tolist()),
        )

    def at_line(self, place: str) -> RecordView:
        """The record at N or FILE:N, where N is what messages call it by: a line, or a row of a table.

        Raises UserError where there is no record."""
        file, number = self._place(place)
        same = (self._whole.file_of == file) & (self._whole.numbers == number)
        if same.any():
            return self.sample(int(np.flatnonzero(same)[0]))
        found, where = self._read(file, number), self._files[file]
        if isinstance(found, ChatRecord):
            found = self._refusal(found)
        if found is None:
            mine = self._whole.numbers[self._whole.file_of == file]
            span = f", its records are in {where.unit}s {mine.min()} to {mine.max()}" if len(mine) else ""
            raise UserError(f"--line {place}: no record in {where.unit} {number} of {where.name}{span}")
        return RecordView(None, f"{where.name} {where.unit} {number}", left_out=str(found))

    @cached_property
    def _encoder(self) -> ChatEncoder:
        return ChatEncoder(
            self._found.tokenizer, name=self._found.recipe.name, train_on=self._settings.train_on
        )

    @property
    def _spans_by(self) -> str:
        if self._settings.train_on == "all":
            return "all"
        return "markers" if self._encoder.template.has_markers else "renderings"

    def _read(self, file: int, number: int) -> ChatRecord | BadRecordError | None:
        """What a file has at a line."""
        source = self._files[file]
        if source.kind == PYTHON_DOCS:
            records = python_docs()
            return records[number] if 0 <= number < len(records) else None
        chats = (found for at, found in scan_file(source) if at == number)
        found = next(chats, None)
        if found is None or isinstance(found, BadRecordError):
            return found
        return ChatRecord(0, found.messages, source.name, number, tools=found.tools, unit=source.unit)

    def _refusal(self, record: ChatRecord) -> BadRecordError | None:
        """Why a chat that can be read has no tokens."""
        try:
            [tokens] = self._encoder.tokenize([self._encoder.render(record)])
        except BadRecordError as problem:
            return problem
        return tokens if isinstance(tokens, BadRecordError) else None

    def _fate(self, sample: int, trained: NDArray[np.bool_]) -> tuple[str, int]:
        """Why it is left out, and how many of its tokens stay."""
        settings, length = self._settings, len(trained)
        kept = min(length, settings.max_seq_length) if settings.overlong == "truncate" else length
        if self._is_held_out(sample):
            return "held out for validation (data.validation_split)", kept
        if kept > settings.max_seq_length:
            ends = "; data.overlong: error ends the run" if settings.overlong == "error" else ""
            return f"{TOO_LONG} {settings.max_seq_length}{ends}", kept
        if not trained[1:kept].any():
            cut = " before its end is cut off" if kept < length and trained[1:].any() else ""
            return f"{NOTHING_TRAINED}{cut}", kept
        return "", kept

    def _is_held_out(self, sample: int) -> bool:
        if not self._settings.validation_split:
            return False
        _, held_out = self._whole.split(self._settings.validation_split, seed=self._settings.seed)
        return bool((held_out.starts == self._whole.starts[sample]).any())

    def _place(self, place: str) -> tuple[int, int]:
        """Which file, and the number in it."""
        name, _, number = place.rpartition(":")
        if not number.isdecimal():
            raise UserError(f"--line {place}: write its number, or FILE:NUMBER")
        if not name and len(self._files) > 1:
            example = short_path(self._files[0].name)
            raise UserError(
                f"--line {place}: data.train has {len(self._files)} files; write FILE:{number}, "
                f"for example {example}:{number}"
            )
        matching = _named(self._files, name) if name else [0]
        if len(matching) != 1:
            found = "several files" if matching else "no file"
            names = ", ".join(short_path(file.name) for file in self._files[:MAX_NAMES])
            more = f" and {len(self._files) - MAX_NAMES} more" if len(self._files) > MAX_NAMES else ""
            raise UserError(f"--line {place}: data.train has {found} {name}; it has {names}{more}")
        return matching[0], int(number)


def _named(files: Sequence[DataFile], name: str) -> list[int]:
    """Places of the files of this name, or else of this name without its folder."""
    whole = [at for at, file in enumerate(files) if file.name == name]
    return whole or [at for at, file in enumerate(files) if Path(file.name).name == name]
