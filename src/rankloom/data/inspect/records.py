"""The records of files that are tokenised before a run, by their place or their line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from rankloom.config import ResolvedConfig
from rankloom.config.energon import ENERGON
from rankloom.data.dataset import TokenizedDataset
from rankloom.data.encoding import ChatEncoder
from rankloom.data.inspect.record import RecordView, fate, record_view
from rankloom.data.prepare import recipe_of
from rankloom.data.tokenized import Recipe, Tokenized, tokenized
from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS, ChatRecord, DataFile, Sources, data_files
from rankloom.records.pythondocs import python_docs
from rankloom.records.reading import scan_file
from rankloom.records.record import BadRecordError, place_of
from rankloom.records.source import short_path
from rankloom.records.words import counted

__all__ = ["Records"]

TRAIN, VALIDATION = "data.train", "data.validation"
HELD_OUT = "held out for validation (data.validation_split)"
NOT_HELD_OUT = "not held out for validation (data.validation_split), but trained on"
MAX_NAMES = 4


class Records:
    """The records of ``data.train``, those that do not fit included; or with ``validation`` those to
    evaluate.

    Raises:
        UserError: as `rankloom.data.prepare.prepare` for data and tokenizers that cannot be used; there is no
            such data.
    """

    def __init__(self, resolved: ResolvedConfig, *, validation: bool = False) -> None:
        self._settings = resolved.data
        self._validation = validation
        self._key, sources = _sources(resolved, validation)
        self._files = data_files(sources, key=self._key)
        self._found = _tokenized(resolved, self._key, sources)
        self._whole = self._shown = self._found.dataset
        if validation and self._key == TRAIN:
            self._shown = self._held_out

    def __len__(self) -> int:
        return len(self._shown)

    def sample(self, sample: int) -> RecordView:
        """The record at a place, from 0. Raises UserError with the range where there is none."""
        if not 0 <= sample < len(self):
            there = f"{counted(len(self), 'record')}, 0 to {len(self) - 1}"
            raise UserError(f"--sample {sample}: {self._shown.source} has {there}")
        return self._view(self._shown, sample)

    def at_line(self, place: str) -> RecordView:
        """The record at N or FILE:N, where N is what messages call it by: a line, or a row of a table.

        Raises UserError where there is no record."""
        file, number = self._place(place)
        for dataset in (self._shown, self._whole):
            same = (dataset.file_of == file) & (dataset.numbers == number)
            if same.any():
                return self._view(dataset, int(np.flatnonzero(same)[0]))
        found, where = self._read(file, number), self._files[file]
        if isinstance(found, ChatRecord):
            found = self._refusal(found)
        if found is None:
            mine = self._whole.numbers[self._whole.file_of == file]
            span = f", its records are in {where.unit}s {mine.min()} to {mine.max()}" if len(mine) else ""
            raise UserError(f"--line {place}: no record in {where.unit} {number} of {where.name}{span}")
        name = place_of(where.name, where.unit, number)
        return RecordView(None, name, left_out=str(found), validation=self._validation)

    def _view(self, dataset: TokenizedDataset, position: int) -> RecordView:
        record = self._read(int(dataset.file_of[position]), int(dataset.numbers[position]))
        assert isinstance(record, ChatRecord), "the cache is of these very files"
        settings, tokens = self._settings, (dataset.ids(position), dataset.trained(position))
        left_out, num_kept = fate(
            tokens[1], max_seq_length=settings.max_seq_length, overlong=settings.overlong
        )
        among = dataset is self._shown
        return record_view(
            record,
            tokens,
            self._encoder,
            tokenizer=self._found.tokenizer,
            sample=position if among else None,
            name=dataset.record_name(position),
            left_out=self._other_use(dataset, position, among) or left_out,
            num_kept=num_kept,
            validation=self._validation,
        )

    def _other_use(self, dataset: TokenizedDataset, position: int, among: bool) -> str:
        """What else a record of data that are split serves."""
        if not self._settings.validation_split or self._key != TRAIN:
            return ""
        if self._validation:
            return "" if among else NOT_HELD_OUT
        is_held_out = (self._held_out.starts == dataset.starts[position]).any()
        return HELD_OUT if is_held_out else ""

    @cached_property
    def _held_out(self) -> TokenizedDataset:
        return self._whole.split(self._settings.validation_split, seed=self._settings.seed)[1]

    @cached_property
    def _encoder(self) -> ChatEncoder:
        return ChatEncoder(
            self._found.tokenizer, name=self._found.recipe.name, train_on=self._settings.train_on
        )

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

    def _place(self, place: str) -> tuple[int, int]:
        """Which file, and the number in it."""
        name, _, number = place.rpartition(":")
        if not number.isdecimal():
            raise UserError(f"--line {place}: write its number, or FILE:NUMBER")
        if not name and len(self._files) > 1:
            example = short_path(self._files[0].name)
            raise UserError(
                f"--line {place}: {self._key} has {len(self._files)} files; write FILE:{number}, "
                f"for example {example}:{number}"
            )
        matching = _named(self._files, name) if name else [0]
        if len(matching) != 1:
            found = "several files" if matching else "no file"
            names = ", ".join(short_path(file.name) for file in self._files[:MAX_NAMES])
            more = f" and {len(self._files) - MAX_NAMES} more" if len(self._files) > MAX_NAMES else ""
            raise UserError(f"--line {place}: {self._key} has {found} {name}; it has {names}{more}")
        return matching[0], int(number)


def _sources(resolved: ResolvedConfig, validation: bool) -> tuple[str, Sources]:
    """The setting that names the records, and what it names."""
    data = resolved.data
    if validation and data.validation is not None:
        return VALIDATION, data.validation
    if validation and not data.validation_split:
        raise UserError(
            "there is no validation data: set data.validation, or data.validation_split to a share of "
            "data.train"
        )
    if data.train is None:
        raise UserError('data.train is not set; name a JSON Lines file of chats, or "python-docs"')
    return TRAIN, data.train


def _tokenized(resolved: ResolvedConfig, key: str, sources: Sources) -> Tokenized:
    recipe = recipe_of(
        model_path=resolved.model.path,
        model_config=resolved.model.config,
        bad_records=resolved.data.bad_records,
        train_on=resolved.data.train_on,
        cache_dir=resolved.data.cache_dir,
    )
    if key == VALIDATION and recipe.tokenizer is None:
        recipe = _with_trained_tokenizer(resolved, recipe)
    return tokenized(sources, recipe, key=key)


def _with_trained_tokenizer(resolved: ResolvedConfig, recipe: Recipe) -> Recipe:
    """Validation data never train a tokenizer: it is that of the training data."""
    if resolved.data.source == ENERGON:
        from rankloom.data.energon.prepare import energon_source, with_tokenizer  # loads Energon

        return with_tokenizer(recipe, energon_source(resolved))
    return tokenized(_sources(resolved, False)[1], recipe).for_other_data()


def _named(files: Sequence[DataFile], name: str) -> list[int]:
    """Places of the files of this name, or else of this name without its folder."""
    whole = [at for at, file in enumerate(files) if file.name == name]
    return whole or [at for at, file in enumerate(files) if Path(file.name).name == name]
