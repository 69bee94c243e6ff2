"""What Energon does with a sample: a cooker takes its chat, this project's code makes tokens of it, and
Energon's packing hooks lay chats into rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    PackingDataset,
    Sample,
    SkipSample,
    basic_sample_keys,
    edataclass,
    stateless,
)
from numpy.typing import NDArray

from rankloom.data.dataset import NOTHING_TRAINED, TOO_LONG
from rankloom.data.encoding import ChatEncoder
from rankloom.data.packing import Packing, pack_epoch
from rankloom.errors import RankloomError, UserError
from rankloom.records import ChatRecord, chat_of
from rankloom.records.json_text import json_value
from rankloom.records.record import BadRecordError
from rankloom.records.words import counted

__all__ = [
    "CHAT_COOKER",
    "ChatTask",
    "EncodedChat",
    "PackedChats",
    "RawChat",
    "RowSettings",
    "Tally",
    "raise_error",
    "raw_chat",
    "record_of",
    "unread_line",
]


@dataclass(frozen=True)
class RowSettings:
    """How samples become rows; the settings of the same names."""

    max_seq_length: int
    packing: Packing = "greedy"
    packing_window: int = 128
    bad_records: str = "error"
    overlong: str = "drop"


@dataclass
class Tally:
    """What was met so far: samples that have tokens, and of those packed how many lie in how many rows."""

    encoded: int = 0
    packed: int = 0
    rows: int = 0


@edataclass
class RawChat(Sample):
    """``content``: the bytes of a part, or what was read from them; ``number``: its place in the data set."""

    content: object
    number: int
    place: str


@edataclass
class EncodedChat(Sample):
    """Tokens of one chat: ids int32 [T], trained bool [T]; ``place``: where it is, for messages."""

    number: int
    place: str
    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    truncated: bool


@edataclass
class PackedChats(Sample):
    """The chats of one row, in order."""

    chats: tuple[EncodedChat, ...]


def raw_chat(sample: Mapping[str, Any]) -> RawChat:
    """What Energon read of a sample. Raises UserError where it has no chat."""
    place = f"{sample['__shard__']}, sample {sample['__key__']}"
    if "json" not in sample:
        parts = ", ".join(sorted(part for part in sample if not part.startswith("__"))) or "none"
        raise UserError(f'{place}: has no part "json" with a chat; its parts are {parts}')
    return RawChat(
        **basic_sample_keys(sample),
        content=sample["json"],
        number=int(sample["__restore_key__"][-1]),
        place=place,
    )


CHAT_COOKER = Cooker(stateless(raw_chat))


def record_of(sample: RawChat) -> ChatRecord:
    """Raises BadRecordError."""
    chat = chat_of(_value(sample.content))
    return ChatRecord(sample.number, chat.messages, sample.place, None, tools=chat.tools, unit="sample")


class ChatTask(DefaultTaskEncoder):
    """Energon's task encoder of one virtual lane.

    ``skipped``: samples left out so far, by reason; ``tally`` is counted up.
    """

    cookers = (CHAT_COOKER,)
    decoder = None  # parts stay bytes: no image library is asked

    def __init__(self, encoder: ChatEncoder, settings: RowSettings, tally: Tally) -> None:
        super().__init__()
        self.skipped: Counter[str] = Counter()
        self.tally = tally
        self._encoder = encoder
        self._settings = settings

    @stateless
    def encode_sample(self, sample: RawChat) -> EncodedChat:
        """Raises SkipSample for what is left out and counted, UserError for what ends the run."""
        try:
            record = record_of(sample)
        except BadRecordError as problem:
            self._bad_record(sample.place, problem)
            raise SkipSample from None
        try:
            ids, trained = self._tokens(record)
        except BadRecordError as problem:
            self._bad_record(sample.place, problem, f" ({self._encoder.template.name})")
            raise SkipSample from None
        longest = self._settings.max_seq_length
        too_long = len(ids) > longest
        if too_long and self._settings.overlong == "error":
            raise UserError(
                f"{sample.place} has {counted(len(ids), 'token')}, data.max_seq_length is {longest}; raise "
                "data.max_seq_length, or set data.overlong to drop or truncate"
            )
        if too_long and self._settings.overlong == "drop":
            raise self._left_out(TOO_LONG)
        ids, trained = ids[:longest], trained[:longest]
        if not trained[1:].any():
            raise self._left_out(NOTHING_TRAINED)
        self.tally.encoded += 1
        return EncodedChat.derive_from(  # type: ignore[no-any-return]
            sample, number=sample.number, place=sample.place, ids=ids, trained=trained, truncated=too_long
        )

    def select_samples_to_pack(self, samples: list[EncodedChat]) -> list[list[EncodedChat]]:
        """The rows of a window of samples."""
        rows = pack_epoch(
            [len(sample.ids) for sample in samples],
            range(len(samples)),
            max_seq_length=self._settings.max_seq_length,
            packing=self._settings.packing,
            window=len(samples),
        )
        self.tally.packed += len(samples)
        self.tally.rows += len(rows)
        return [[samples[place] for place in row] for row in rows]

    @stateless
    def pack_selected_samples(self, samples: list[EncodedChat]) -> PackedChats:
        """One row."""
        return PackedChats.derive_from(samples[0], chats=tuple(samples))  # type: ignore[no-any-return]

    def build_batch(self, dataset: Any, **settings: Any) -> Any:
        """As Energon builds it, without a progress bar: that would hold a lock which a rank that is killed
        leaves behind."""
        built = super().build_batch(dataset, **settings)
        if isinstance(built, PackingDataset):
            fill = built._fill_reading_buffer
            built._fill_reading_buffer = lambda source, log_progress=False: fill(source)
        return built

    def on_error(self, error: Exception, sample: Any, sources: Sequence[Any] | None = None) -> None:
        """Energon's error handler, which would go on without the sample.

        Raises what this project raised, and UserError with shard and key for everything else. Only a line
        that is no JSON is a bad record like others: Energon reads it before the cooker does.
        """
        self._bad_record(_place_of(sample, sources), unread_line(error, sample, sources))

    def _bad_record(self, place: str, problem: BadRecordError, origin: str = "") -> None:
        if self._settings.bad_records == "error":
            raise UserError(
                f"{place}: {problem}{origin}. Mend the sample, or leave bad records out with "
                "data.bad_records: skip"
            ) from None
        self.skipped[problem.reason] += 1

    def _tokens(self, record: ChatRecord) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        (found,) = self._encoder.tokenize([self._encoder.render(record)])
        if isinstance(found, BadRecordError):
            raise found
        return found

    def _left_out(self, reason: str) -> SkipSample:
        self.skipped[reason] += 1
        return SkipSample()


def unread_line(error: Exception, sample: Any, sources: Sequence[Any] | None = None) -> BadRecordError:
    """What is wrong with a line that Energon could not read. Raises as `raise_error` for other errors."""
    parts = getattr(sample, "data", None)  # before Energon has made a sample of what it read
    raw = parts[0].get("json") if isinstance(parts, tuple) and parts else None
    if not isinstance(raw, bytes) or not isinstance(error, ValueError):
        raise_error(error, sample, sources)
    else:
        try:
            json_value(raw)
        except BadRecordError as problem:
            return problem
    return BadRecordError("not valid JSON", " ".join(str(error).split())[:120])


def raise_error(error: Exception, sample: Any, sources: Sequence[Any] | None = None) -> None:
    """Raises what this project raised, and UserError with shard and key for everything else."""
    if isinstance(error, RankloomError):
        raise error
    reason = " ".join(str(error).split())[:200] or "no reason given"
    raise UserError(f"{_place_of(sample, sources)}: {type(error).__name__}: {reason}") from error


def _place_of(sample: Any, sources: Sequence[Any] | None) -> str:
    if sources:
        return f"{sources[0].shard_name}, sample {sources[0].index}"
    parts = getattr(sample, "data", None)  # before Energon has made a sample of what it read
    raw = parts[0] if isinstance(parts, tuple) and parts else sample
    if isinstance(raw, Mapping) and "__key__" in raw:
        return f"{raw.get('__shard__', 'the data set')}, sample {raw['__key__']}"
    return "a sample"


def _value(content: object) -> object:
    return json_value(content) if isinstance(content, bytes) else content
