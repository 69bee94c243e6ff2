"""Chat records to token ids and the mask of what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from rankloom.data.dataset import Encoded
from rankloom.data.literal import LiteralText
from rankloom.data.template import ChatTemplate, Span
from rankloom.errors import UserError
from rankloom.records import ChatRecord
from rankloom.records.record import BadRecordError
from rankloom.records.words import total_by_reason

__all__ = ["ChatEncoder", "Tokens", "encode_records"]

BATCH_RECORDS = 256
BATCH_CHARS = 2**20  # a batch ends with the record that reaches it

Tokens = tuple[NDArray[np.int32], NDArray[np.bool_]]  # ids [T], trained [T]


@dataclass(frozen=True)
class Rendered:
    """A rendered chat; ``literal``: the special token that a message spells, then the text is respelled."""

    text: str
    spans: list[Span]
    literal: str | None = None


class ChatEncoder:
    """Chats to tokens with one tokenizer, its template and one choice of what is trained.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        name: what messages call the tokenizer.
        train_on: see `ChatTemplate`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str, train_on: str = "all_turns") -> None:
        self.name = name
        self.template = ChatTemplate(tokenizer, name=name, train_on=train_on)
        self._backend = whole_text_backend(tokenizer)
        self._literal = LiteralText(tokenizer, self.template, self._backend)

    def render(self, record: ChatRecord) -> Rendered:
        """The text of a chat. Raises BadRecordError: see `ChatTemplate.spans` and `LiteralText.respell`."""
        messages, tools = record.messages, record.tools
        text, spans = self.template.spans(messages, tools)
        token = self._literal.spelled_in(messages, tools)
        if token is None:
            return Rendered(text, spans)
        respelled = self._literal.respell(messages, tools, text, spans, token=token)
        return Rendered(respelled.text, respelled.spans, token)

    def tokenize(self, rendered: Sequence[Rendered]) -> list[Tokens | BadRecordError]:
        """The tokens of each chat: a token is trained when it overlaps a trained span of the text."""
        plain = [each.text for each in rendered if each.literal is None]
        encodings = iter(
            self._backend.encode_batch(plain, add_special_tokens=False)
        )  # the template wrote them
        return [
            self._tokens(next(encodings), e) if e.literal is None else self._of_literal(e) for e in rendered
        ]

    def _of_literal(self, rendered: Rendered) -> Tokens | BadRecordError:
        copy = self._literal.copy
        assert copy is not None, "such a chat is refused when it is rendered"
        assert rendered.literal is not None
        encoding = copy.encode(rendered.text, add_special_tokens=False)
        try:
            self._literal.check(encoding, rendered.text, token=rendered.literal)
        except BadRecordError as problem:
            return problem
        return self._tokens(encoding, rendered)

    @staticmethod
    def _tokens(encoding: Encoding, rendered: Rendered) -> Tokens:
        return np.asarray(encoding.ids, dtype=np.int32), trained_tokens(encoding, rendered.spans)


@dataclass
class _Totals:
    """Tokens, and trained tokens, of each file."""

    tokens: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)

    def add(self, encoded: Encoded) -> None:
        source = _source(encoded[0])
        self.tokens[source] += len(encoded[1])
        self.trained[source] += int(np.count_nonzero(encoded[2]))


@dataclass
class _Batch:
    records: list[ChatRecord] = field(default_factory=list)
    rendered: list[Rendered] = field(default_factory=list)
    num_chars: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= BATCH_RECORDS or self.num_chars >= BATCH_CHARS

    def add(self, record: ChatRecord, rendered: Rendered) -> None:
        self.records.append(record)
        self.rendered.append(rendered)
        self.num_chars += len(rendered.text)


def encode_records(
    records: Iterable[ChatRecord],
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    skipped: Counter[str],
    bad_records: str = "error",
    train_on: str = "all_turns",
) -> Iterator[Encoded]:
    """Yields ``(record, ids [T], trained [T])`` in order; trained[t]: token t is to be predicted.

    A thread tokenises one batch of records while the next is read and rendered; no more than these are held.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        name: what messages call the tokenizer.
        skipped: records the template refuses are counted here, by reason, when ``bad_records`` is "skip".
        train_on: see `ChatTemplate`.

    Raises:
        UserError: the template refuses a record, or its assistant turns cannot be found; no token of a file,
            or every token of one (except with train_on "all"), would be trained; no record is left.
    """
    encoder = ChatEncoder(tokenizer, name=name, train_on=train_on)
    totals = _Totals()
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: list[tuple[_Batch, Future[list[Tokens | BadRecordError]]]] = []
        for batch in chain(_batches(records, encoder, bad_records, skipped), [_Batch()]):
            done = waiting.pop() if waiting else None
            if batch.records:
                waiting.append((batch, pool.submit(encoder.tokenize, batch.rendered)))
            if done is not None:
                for encoded in _finished(done[0], done[1].result(), encoder, bad_records, skipped):
                    totals.add(encoded)
                    yield encoded
    _refuse_constant_masks(totals, encoder.template, skipped)


def _batches(
    records: Iterable[ChatRecord],
    encoder: ChatEncoder,
    bad_records: str,
    skipped: Counter[str],
) -> Iterator[_Batch]:
    batch = _Batch()
    for record in records:
        try:
            batch.add(record, encoder.render(record))
        except BadRecordError as problem:
            _refuse_or_count(record, problem, encoder, bad_records, skipped)
        if batch.is_full:
            yield batch
            batch = _Batch()
    yield batch


def _finished(
    batch: _Batch,
    tokens: Sequence[Tokens | BadRecordError],
    encoder: ChatEncoder,
    bad_records: str,
    skipped: Counter[str],
) -> Iterator[Encoded]:
    for record, found in zip(batch.records, tokens, strict=True):
        if isinstance(found, BadRecordError):
            _refuse_or_count(record, found, encoder, bad_records, skipped)
        else:
            yield record, *found


def _refuse_or_count(
    record: ChatRecord, problem: BadRecordError, encoder: ChatEncoder, bad_records: str, skipped: Counter[str]
) -> None:
    if bad_records == "error":
        raise UserError(f"{record.place}: {problem} ({encoder.template.name})") from None
    skipped[problem.reason] += 1


def trained_tokens(encoding: Encoding, spans: Sequence[Span]) -> NDArray[np.bool_]:
    """[T] bool: which tokens overlap a span of the text (characters, end not included, not empty).

    A token of spaces alone may be reported without width, at its end; it overlaps a span that it lies in.
    """
    trained = np.zeros(len(encoding), dtype=np.bool_)
    for start, end in spans:
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        if first is None or last is None:  # such a character is in no token
            return _overlap(encoding.offsets, spans)
        last += 1
        while last < len(trained):  # more tokens of the same character, or one without width
            token_start, token_end = encoding.token_to_chars(last) or (end, end + 1)
            if token_start >= end and not token_start == token_end == end:
                break
            last += 1
        trained[first:last] = True
    return trained


def _overlap(offsets: Sequence[Span], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """[T] bool: which tokens overlap a span; offsets are [T] pairs of character positions."""
    places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    trained = np.zeros(len(places), dtype=np.bool_)
    for start, end in spans:
        without_width = (start < ends) & (ends <= end)
        trained |= np.where(starts == ends, without_width, (starts < end) & (start < ends))
    return trained


def _refuse_constant_masks(totals: _Totals, template: ChatTemplate, skipped: Counter[str]) -> None:
    """Raises UserError if nothing of a file is trained, or everything though answers alone are to be."""
    if not totals.tokens:
        why = f"left out: {total_by_reason(skipped, 'record')}" if skipped else "there was none"
        raise UserError(f"no record is left; {why} ({template.name})")
    for source, tokens in totals.tokens.items():
        if totals.trained[source] == 0:
            wrong = f"none of the {tokens:,} tokens would be trained: no text is marked as the assistant's"
        elif totals.trained[source] == tokens and template.train_on != "all":
            wrong = f"all {tokens:,} tokens would be trained: users' text too is marked as the assistant's"
        else:
            continue
        raise UserError(f"{source}: {wrong} ({template.name}); check the {{% generation %}} markers in it")


def whole_text_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """What tokenises, without truncation and padding: ``tokenizer`` is saved with the model and stays as it
    is."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    if backend.truncation is None and backend.padding is None:
        return backend
    copied = Tokenizer.from_str(backend.to_str())
    copied.no_truncation()
    copied.no_padding()
    return copied


def _source(record: ChatRecord) -> str:
    return "the data" if record.line is None else record.source
