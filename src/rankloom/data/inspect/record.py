"""One record: its text, its tokens, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rankloom.data.dataset import NOTHING_TRAINED, TOO_LONG
from rankloom.data.encoding import ChatEncoder, Tokens
from rankloom.data.inspect.texts import TokenTexts
from rankloom.data.template import Span
from rankloom.records import ChatRecord

__all__ = ["RecordView", "fate", "record_view"]


@dataclass(frozen=True)
class RecordView:
    """One record.

    Attributes:
        sample: its place among the records that are looked at, from 0; None for one that is not among them.
        name: its file and line.
        left_out: why it is not trained on, or not evaluated; "" if it is.
        num_kept: tokens that are trained on or lead to those; fewer than all where the end is cut off.
        text: the rendered chat.
        spans: characters of it that are trained, [start, stop).
        spans_by: "markers" of the template, "renderings" of the beginnings of the chat, or "all" of it.
        ids, texts, special, trained: its tokens, see `TokenTexts`; trained are those to be predicted.
        validation: it is a record of the validation data.
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
    validation: bool = False


def record_view(
    record: ChatRecord,
    tokens: Tokens,
    encoder: ChatEncoder,
    *,
    tokenizer: PreTrainedTokenizerBase,
    sample: int | None,
    name: str,
    left_out: str,
    num_kept: int,
    validation: bool = False,
) -> RecordView:
    """Of a chat that has tokens; arguments as the attributes of `RecordView`."""
    ids, trained = tokens
    text, spans = encoder.template.spans(record.messages, record.tools)
    found = TokenTexts.of(tokenizer, ids.tolist())
    return RecordView(
        sample=sample,
        name=name,
        left_out=left_out,
        num_kept=num_kept,
        text=text,
        spans=tuple(spans),
        spans_by=_spans_by(encoder),
        ids=tuple(found.ids),
        texts=tuple(found.texts),
        special=tuple(found.special),
        trained=tuple(trained.tolist()),
        validation=validation,
    )


def fate(trained: NDArray[np.bool_], *, max_seq_length: int, overlong: str) -> tuple[str, int]:
    """Why a chat with these trained tokens is left out ("" if it is not), and how many of its tokens stay.

    >>> fate(np.array([False, False, True]), max_seq_length=2, overlong="truncate")
    ('no trained token before its end is cut off', 2)
    """
    length = len(trained)
    kept = min(length, max_seq_length) if overlong == "truncate" else length
    if kept > max_seq_length:
        ends = "; data.overlong: error ends the run" if overlong == "error" else ""
        return f"{TOO_LONG} {max_seq_length}{ends}", kept
    if not trained[1:kept].any():
        cut = " before its end is cut off" if kept < length and trained[1:].any() else ""
        return f"{NOTHING_TRAINED}{cut}", kept
    return "", kept


def _spans_by(encoder: ChatEncoder) -> str:
    if encoder.template.train_on == "all":
        return "all"
    return "markers" if encoder.template.has_markers else "renderings"
