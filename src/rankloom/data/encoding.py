"""Chat records to token ids and the mask of what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rankloom.data.dataset import Encoded
from rankloom.data.template import ChatTemplate, Span
from rankloom.errors import UserError
from rankloom.records import ChatRecord
from rankloom.records.record import BadRecordError

__all__ = ["encode_records"]

BATCH_RECORDS = 256


def encode_records(
    records: Sequence[ChatRecord],
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    skipped: Counter[str],
    bad_records: str = "error",
) -> Iterator[Encoded]:
    """Yields ``(record, ids [T], trained [T])`` in order; trained[t]: token t is to be predicted.

    A token is trained when it overlaps a trained span of the rendered chat.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        name: what messages call the tokenizer.
        skipped: records the template refuses are counted here, by reason, when ``bad_records`` is "skip".

    Raises:
        UserError: the template refuses a record, or its assistant turns cannot be found; no token of any
            record, or every token of all of them, would be trained.
    """
    template = ChatTemplate(tokenizer, name=name)
    num_tokens = num_trained = 0
    for start in range(0, len(records), BATCH_RECORDS):
        rendered = _render(records[start : start + BATCH_RECORDS], template, bad_records, skipped)
        for encoded in _tokenize(rendered, tokenizer):
            num_tokens += len(encoded[1])
            num_trained += int(encoded[2].sum())
            yield encoded
    if num_trained in (0, num_tokens):
        raise _constant_mask(num_tokens, num_trained, records, template, skipped)


def _render(
    records: Sequence[ChatRecord], template: ChatTemplate, bad_records: str, skipped: Counter[str]
) -> list[tuple[ChatRecord, str, list[Span]]]:
    rendered = []
    for record in records:
        try:
            text, spans = template.spans(record.messages)
        except BadRecordError as problem:
            if bad_records == "error":
                raise UserError(f"{_place(record)}: {problem} ({template.name})") from None
            skipped[problem.reason] += 1
            continue
        rendered.append((record, text, spans))
    return rendered


def _tokenize(
    rendered: list[tuple[ChatRecord, str, list[Span]]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[Encoded]:
    if not rendered:
        return
    encoded = tokenizer(
        [text for _, text, _ in rendered],
        add_special_tokens=False,  # the template wrote them
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    tokens = zip(rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True)
    for (record, _, spans), ids, offsets in tokens:
        yield record, np.asarray(ids, dtype=np.int32), _overlap(offsets, spans)


def _overlap(offsets: Sequence[Span], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """[T] bool: which tokens overlap a span; offsets are [T] pairs of character positions."""
    places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    trained = np.zeros(len(places), dtype=np.bool_)
    for start, end in spans:
        # A token of spaces alone may be reported without width, at its end.
        without_width = (start < ends) & (ends <= end)
        trained |= np.where(starts == ends, without_width, (starts < end) & (start < ends))
    return trained


def _constant_mask(
    num_tokens: int,
    num_trained: int,
    records: Sequence[ChatRecord],
    template: ChatTemplate,
    skipped: Counter[str],
) -> UserError:
    source = records[0].source if records and records[0].line else "the data"
    if num_tokens == 0:
        reasons = ", ".join(f"{count:,} skipped because: {reason}" for reason, count in skipped.most_common())
        return UserError(f"{source}: no record is left to train on ({reasons or 'none'}) ({template.name})")
    if num_trained == 0:
        wrong = f"none of the {num_tokens:,} tokens would be trained: no text is marked as the assistant's"
    else:
        wrong = f"all {num_tokens:,} tokens would be trained: users' text too is marked as the assistant's"
    return UserError(f"{source}: {wrong} ({template.name}); check the {{% generation %}} markers in it")


def _place(record: ChatRecord) -> str:
    kind, number = ("record", record.index) if record.line is None else ("line", record.line)
    return f"{record.source}, {kind} {number}"
