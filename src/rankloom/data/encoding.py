"""Chat records to token ids and the mask of what is trained: assistant turns and their end-of-turn token only.

A template with ``{% generation %}`` markers says itself what the assistant's text is. For one without, the text
before and after each assistant turn is found by rendering the beginnings of the chat. Either way the answer is a list
of character spans of the rendered text; a token is trained when it overlaps one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import jinja2
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from rankloom.errors import UserError
from rankloom.records import ChatRecord, Message
from rankloom.records.record import BadRecordError

__all__ = ["ChatEncoder", "Encoded"]

Span = tuple[int, int]
Encoded = tuple[ChatRecord, NDArray[np.int32], NDArray[np.bool_]]
MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
BATCH_RECORDS = 256


class ChatEncoder:
    """Encodes records with one tokenizer and its chat template.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        name: what messages call it, for example the model folder.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.template = _template(tokenizer, name)
        self.has_markers = MARKER.search(self.template) is not None
        self._special_tokens = _special_tokens(tokenizer)
        choices = "|".join(map(re.escape, self._special_tokens)) or "(?!)"  # (?!) never matches
        self._terminator = re.compile(rf"\s*({choices})")

    def encode(
        self, records: Sequence[ChatRecord], *, bad_records: str, skipped: Counter[str]
    ) -> Iterator[Encoded]:
        """Yields ``(record, ids [T], trained [T])`` in order; trained[t] says that token t is to be predicted.

        Records the template refuses are an error, or counted in ``skipped`` when ``bad_records`` is "skip".

        Raises:
            UserError: a record cannot be encoded; no token of any record, or every token of all, would be trained.
        """
        num_tokens = num_trained = 0
        last: ChatRecord | None = None
        remaining = iter(records)
        while batch := list(islice(remaining, BATCH_RECORDS)):
            for last, ids, trained in self._encode_batch(batch, bad_records=bad_records, skipped=skipped):
                num_tokens += len(ids)
                num_trained += int(trained.sum())
                yield last, ids, trained
        if last is None:
            raise UserError(f"no record is left to train on: {_reasons(skipped)} ({self._what()})")
        self._refuse_constant_mask(num_tokens, num_trained, last.source)

    def spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The rendered chat, and the character spans in it that are trained.

        Raises:
            BadRecordError: the template refuses the chat, or an assistant turn cannot be found in its text.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if self.has_markers:
            text, marked = self._render_marked(turns)
            return text, [self._with_end_of_turn(text, span) for span in marked if span[0] < span[1]]
        text = self._render(turns)
        places = [place for place, message in enumerate(messages) if message.role == "assistant"]
        return text, [self._derive_span(text, turns, place) for place in places]

    def _encode_batch(
        self, batch: list[ChatRecord], *, bad_records: str, skipped: Counter[str]
    ) -> Iterator[Encoded]:
        kept: list[ChatRecord] = []
        rendered: list[tuple[str, list[Span]]] = []
        for record in batch:
            try:
                rendered.append(self.spans(record.messages))
            except BadRecordError as problem:
                if bad_records == "error":
                    raise UserError(f"{_place(record)}: {problem} ({self._what()})") from None
                skipped[problem.reason] += 1
                continue
            kept.append(record)
        if not kept:
            return
        texts = [text for text, _ in rendered]
        encoded = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for record, (_, spans), ids, offsets in zip(
            kept, rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            yield record, np.asarray(ids, dtype=np.int32), _overlap(offsets, spans)

    def _derive_span(self, text: str, turns: list[dict[str, str]], place: int) -> Span:
        """Span of assistant turn ``place``, from what the template renders before and after it."""
        before = self._render(turns[:place]) if place else ""
        content = turns[place]["content"].strip()
        content_start = text.find(content, len(before))
        if not text.startswith(before) or content_start < 0:
            raise BadRecordError(
                "the assistant turns cannot be told from the rest of the rendered chat",
                f"turn {place + 1} is rendered differently on its own; put {{% generation %}} markers in the template",
            )
        found = self._terminator.match(text, content_start + len(content))
        after = self._render(turns[: place + 1]).rstrip()
        if found is None or not after.endswith(found[1]) or found[1] in text[len(before) : content_start]:
            raise BadRecordError(
                "the chat template ends assistant turns with no special token",
                f"turn {place + 1}; a model trained so would never stop: end the turn with the "
                "end-of-sequence token in the template",
            )
        return self._answer_start(text, turns[:place], before, content_start), found.end()

    def _answer_start(self, text: str, turns: list[dict[str, str]], before: str, content_start: int) -> int:
        if not turns:
            return content_start
        prompted = self._render(turns, add_generation_prompt=True)
        if prompted != before:  # the template's own answer to "where does the assistant begin to speak"
            return min(len(os.path.commonprefix([text, prompted])), content_start)
        return content_start if text[len(before) : content_start].strip() else len(before)

    def _with_end_of_turn(self, text: str, span: Span) -> Span:
        """Markers that stop just before the end-of-sequence token are meant to include it."""
        start, end = span
        if text[start:end].rstrip().endswith(self._special_tokens):
            return span
        found = self._terminator.match(text, end)
        return (start, found.end()) if found and found[1] == self.tokenizer.eos_token else span

    def _render(self, turns: list[dict[str, str]], *, add_generation_prompt: bool = False) -> str:
        return str(self._call_template(turns, add_generation_prompt=add_generation_prompt)[0][0])

    def _render_marked(self, turns: list[dict[str, str]]) -> tuple[str, list[Span]]:
        texts, spans = self._call_template(turns, return_assistant_tokens_mask=True)
        return texts[0], [(int(start), int(end)) for start, end in spans[0]]

    def _call_template(
        self, turns: list[dict[str, str]], **options: bool
    ) -> tuple[list[str], list[list[Span]]]:
        try:
            return render_jinja_template(  # type: ignore[return-value]
                conversations=[turns],
                chat_template=self.template,
                **options,
                **self.tokenizer.special_tokens_map,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            raise BadRecordError("the chat template refuses the record", reason) from error

    def _refuse_constant_mask(self, num_tokens: int, num_trained: int, source: str) -> None:
        if num_trained == 0:
            raise UserError(
                f"{source}: none of the {num_tokens:,} tokens would be trained: the chat template marks no assistant "
                f"text ({self._what()}); check its {{% generation %}} markers"
            )
        if num_trained == num_tokens:
            raise UserError(
                f"{source}: all {num_tokens:,} tokens would be trained, those of users too: the chat template marks "
                f"everything as assistant text ({self._what()}); check its {{% generation %}} markers"
            )

    def _what(self) -> str:
        return f"chat template of {self.name}"


def _template(tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise UserError(f"{name}: no usable chat template: {str(error).splitlines()[0][:200]}") from error


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    named = {str(token) for token in tokenizer.all_special_tokens}
    return tuple(sorted(added | named, key=lambda token: (-len(token), token)))


def _overlap(offsets: Sequence[Span], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """[T] bool: which tokens overlap a span; offsets are [T] pairs of character positions."""
    places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    trained = np.zeros(len(places), dtype=np.bool_)
    for start, end in spans:
        # A token of spaces alone may be reported without width, at its end.
        inside = np.where(starts == ends, (start < ends) & (ends <= end), (starts < end) & (start < ends))
        trained |= inside
    return trained


def _place(record: ChatRecord) -> str:
    return (
        f"{record.source}, line {record.line}" if record.line else f"{record.source}, record {record.index}"
    )


def _reasons(skipped: Counter[str]) -> str:
    return (
        ", ".join(f"{count:,} skipped because: {reason}" for reason, count in skipped.most_common())
        or "no records"
    )
