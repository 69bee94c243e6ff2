"""Tokenised records on disk, mapped into memory: two flat files and an index."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankloom.data.mixture import Mixture
from rankloom.errors import UserError
from rankloom.records import ChatRecord, DataFile
from rankloom.records.record import place_of
from rankloom.records.words import by_reason, counted

__all__ = ["OVERLONG", "Encoded", "TokenizedDataset", "write_dataset"]

OVERLONG = ("error", "drop", "truncate")
NOTHING_TRAINED = "no trained token"
TOO_LONG = "longer than data.max_seq_length"

SPLIT_STREAM = 1 << 40  # beside the epochs, which draw from (seed, epoch)

Ints = NDArray[np.int64]
Encoded = tuple[ChatRecord, NDArray[np.int32], NDArray[np.bool_]]  # record, ids [T], trained [T]


@dataclass(frozen=True)
class TokenizedDataset:
    """Records as token ids and masks. A record's position, 0 .. len - 1, is what rows refer to.

    Attributes:
        source: what the records came from, all together.
        all_ids, all_trained: the tokens of all records, one after the other; int32 and bool, read-only.
        starts, lengths: where record i lies in them, [R] int64.
        valid: labels of record i that enter the loss, [R] int64: its trained tokens, except for its first
            token, which nothing predicts.
        numbers: physical line of record i in its file (or row of a table, or place in a built-in set), [R]
            int64.
        file_of: which of ``files`` record i is from, [R] int64.
        files: name of each file, and what its numbers count: "line", "row" or "record".
        mixture: how often the records of each file occur in an epoch.
        skipped: records that are not here, counted by reason.
        num_truncated: records that were cut.
        content_hash: sha256 (hex) of tokens, masks and numbers, before records were left out for their
            length.
    """

    source: str
    all_ids: NDArray[np.int32]
    all_trained: NDArray[np.bool_]
    starts: Ints
    lengths: Ints
    valid: Ints
    numbers: Ints
    file_of: Ints
    files: tuple[tuple[str, str], ...]
    mixture: Mixture = field(default_factory=Mixture)
    skipped: Counter[str] = field(default_factory=Counter)
    num_truncated: int = 0
    content_hash: str = ""

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], trained: Sequence[Sequence[bool]], *, source: str = "memory"
    ) -> TokenizedDataset:
        """A dataset from lists, one of ids and one of booleans a record."""
        lengths = np.array([len(record) for record in ids], dtype=np.int64)
        masks = [np.asarray(mask, dtype=np.bool_) for mask in trained]
        return cls(
            source=source,
            all_ids=np.concatenate([np.asarray(record, dtype=np.int32) for record in ids]),
            all_trained=np.concatenate(masks),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            valid=np.array([_valid(mask) for mask in masks], dtype=np.int64),
            numbers=np.arange(len(ids), dtype=np.int64),
            file_of=np.zeros(len(ids), dtype=np.int64),
            files=((source, "record"),),
        )

    @classmethod
    def open(
        cls, folder: Path, *, source: str, files: Sequence[DataFile] = (), weights: Sequence[float] = (1.0,)
    ) -> TokenizedDataset:
        """Maps what `write_dataset` wrote.

        Args:
            source: what the records are called in messages.
            files: those that were read, in the same order; where left out, one file of lines, ``source``.
            weights: of each entry of the setting that named the files.
        """
        facts = json.loads((folder / "dataset.json").read_text())
        files = files or (DataFile(source, "lines"),)
        index = np.load(folder / "index.npy")
        return cls(
            source=source,
            all_ids=_mapped(folder / "ids.int32", np.int32),
            all_trained=_mapped(folder / "trained.bool", np.bool_),
            starts=np.cumsum(index[0]) - index[0],
            lengths=index[0],
            valid=index[1],
            numbers=index[2],
            file_of=index[3],
            files=tuple((file.name, file.unit) for file in files),
            mixture=Mixture.of([file.source for file in files], weights),
            skipped=Counter(facts["skipped"]),
            content_hash=facts["content_hash"],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def ids(self, position: int) -> NDArray[np.int32]:
        """[T] token ids of one record."""
        start = self.starts[position]
        return self.all_ids[start : start + self.lengths[position]]

    def trained(self, position: int) -> NDArray[np.bool_]:
        """[T] which tokens of one record are to be predicted."""
        start = self.starts[position]
        return self.all_trained[start : start + self.lengths[position]]

    def record_name(self, position: int) -> str:
        """Where a record comes from, as a person can look it up."""
        name, unit = self.files[self.file_of[position]]
        return place_of(name, unit, int(self.numbers[position]))

    def source_names(self) -> list[str]:
        """Of each source of the mixture: its file, or the first of several and how many more there are."""
        names: list[list[str]] = [[] for _ in self.mixture.weights]
        for (name, _), source in zip(self.files, self.mixture.source_of_file, strict=True):
            names[source].append(name)
        return [found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more" for found in names]

    def epoch(self, epoch: int, *, seed: int) -> Ints:
        """Positions of the records of an epoch, as often as each occurs in it, before they are shuffled."""
        return self.mixture.epoch(self.file_of, epoch, seed=seed)

    def split(self, share: float, *, seed: int) -> tuple[TokenizedDataset, TokenizedDataset]:
        """The records without, and with only, a ``share`` of them that is drawn with ``seed``; both in order.

        Raises:
            UserError: there would be no record in one of the two.
        """
        count = round(share * len(self))
        if not 0 < count < len(self):
            raise UserError(
                f"data.validation_split {share:g} of {counted(len(self), 'record')} is {count:,}: at least "
                "one record is needed for validation and one for training"
            )
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, SPLIT_STREAM])))
        drawn = np.zeros(len(self), dtype=np.bool_)
        drawn[generator.permutation(len(self))[:count]] = True
        held_out = replace(
            self._only(drawn), source=f"a share of {self.source}", mixture=Mixture(), skipped=Counter()
        )
        return self._only(~drawn), held_out

    def _only(self, keep: NDArray[np.bool_]) -> TokenizedDataset:
        return replace(
            self,
            starts=self.starts[keep],
            lengths=self.lengths[keep],
            valid=self.valid[keep],
            numbers=self.numbers[keep],
            file_of=self.file_of[keep],
        )

    def fitted(self, max_seq_length: int, *, overlong: str, purpose: str = "to train on") -> TokenizedDataset:
        """The records that can be trained on in rows of ``max_seq_length`` tokens; ``purpose``: what they are
        for, in messages.

        Records without a trained token are left out and counted; longer ones are refused ("error"), left out
        and counted ("drop") or cut ("truncate") by ``overlong``.

        Raises:
            UserError: a record is too long and ``overlong`` is "error", or no record is left.
        """
        if overlong not in OVERLONG:
            raise UserError(f'data.overlong is "{overlong}"; use "error", "drop" or "truncate"')
        too_long = self.lengths > max_seq_length
        if overlong == "error" and too_long.any():
            raise UserError(self._too_long_message(max_seq_length, too_long))
        skipped = Counter(self.skipped)
        lengths, valid = self.lengths, self.valid
        keep = np.ones(len(self), dtype=np.bool_)
        if overlong == "drop" and too_long.any():
            skipped[TOO_LONG] += int(too_long.sum())
            keep = ~too_long
        elif overlong == "truncate":
            lengths, valid = np.minimum(lengths, max_seq_length), valid.copy()
            for position in np.flatnonzero(too_long):
                valid[position] = _valid(self.trained(int(position))[:max_seq_length])
        untrained = keep & (valid == 0)
        if untrained.any():
            skipped[NOTHING_TRAINED] += int(untrained.sum())
            keep &= ~untrained
        if not keep.any():
            raise UserError(self._nothing_left_message(max_seq_length, skipped, purpose))
        cut = replace(self, lengths=lengths, valid=valid, skipped=skipped)
        return replace(cut._only(keep), num_truncated=int((too_long & keep).sum()))

    def _too_long_message(self, max_seq_length: int, too_long: NDArray[np.bool_]) -> str:
        first = int(np.flatnonzero(too_long)[0])
        return (
            f"{self.record_name(first)} has {self.lengths[first]} tokens, data.max_seq_length is "
            f"{max_seq_length} (longer: {too_long.sum():,} of {counted(len(self), 'record')}, the longest "
            f"has {self.lengths.max()} tokens); raise data.max_seq_length, or set data.overlong to drop or "
            "truncate"
        )

    def _nothing_left_message(self, max_seq_length: int, skipped: Counter[str], purpose: str) -> str:
        return (
            f"{self.source}: no record is left {purpose} ({by_reason(skipped)}); the shortest has "
            f"{counted(int(self.lengths.min()), 'token')} and data.max_seq_length is {max_seq_length}"
        )


def write_dataset(folder: Path, encoded: Iterable[Encoded], *, skipped: Counter[str]) -> None:
    """Writes encoded records for `TokenizedDataset.open`, one at a time as they come.

    ``skipped`` is read after the last record, so that a lazy ``encoded`` can still count into it.
    """
    digest = hashlib.sha256()
    index = array("q")  # a few numbers a record, which a list would keep as objects
    with (folder / "ids.int32").open("wb") as ids_file, (folder / "trained.bool").open("wb") as trained_file:
        for record, ids, trained in encoded:
            for stream, part in ((ids_file, ids.tobytes()), (trained_file, trained.tobytes())):
                stream.write(part)
                digest.update(part)
            index.extend((len(ids), _valid(trained), record.number, record.file))
    table = np.frombuffer(index, dtype=np.int64).reshape(-1, 4).T.copy()
    np.save(folder / "index.npy", table)
    digest.update(table.tobytes())
    facts = {"skipped": dict(skipped), "content_hash": digest.hexdigest()}
    (folder / "dataset.json").write_text(json.dumps(facts, indent=1))


def _valid(trained: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(trained[1:]))


def _mapped(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
