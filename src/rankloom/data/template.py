"""Which characters of a rendered chat are trained: assistant turns and their end-of-turn token, nothing else.

A template with ``{% generation %}`` markers says itself where the assistant speaks. For one without, each
assistant turn is found by rendering the beginnings of the chat. What cannot be found is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from rankloom.errors import UserError
from rankloom.records import Message
from rankloom.records.record import BadRecordError

__all__ = ["ChatTemplate", "Span"]

Span = tuple[int, int]  # characters of the rendered text, the end not included
MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: one with a chat template.
        name: what messages call it, for example the model folder.

    Raises:
        UserError: it has no template, or several and no default.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
        try:
            self.text = str(tokenizer.get_chat_template())
        except ValueError as error:
            raise UserError(f"{name}: no usable chat template: {_first_line(error)}") from error
        self.name = f"chat template of {name}"
        self.has_markers = MARKER.search(self.text) is not None
        self._tokenizer = tokenizer
        self._special_tokens = _special_tokens(tokenizer)
        choices = "|".join(map(re.escape, self._special_tokens)) or "(?!)"  # (?!) never matches
        self._terminator = re.compile(rf"\s*({choices})")

    def spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The rendered chat, and the spans of it that are trained.

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

    def _derive_span(self, text: str, turns: list[dict[str, str]], place: int) -> Span:
        before = self._render(turns[:place]) if place else ""
        content = turns[place]["content"].strip()
        content_start = text.find(content, len(before))
        if not text.startswith(before) or content_start < 0:
            raise BadRecordError(
                "the assistant turns cannot be told from the rest of the rendered chat",
                f"turn {place + 1} is rendered differently on its own; put {{% generation %}} markers in the "
                "template",
            )
        found = self._terminator.match(text, content_start + len(content))
        after = self._render(turns[: place + 1]).rstrip()
        if found is None or not after.endswith(found[1]) or found[1] in text[len(before) : content_start]:
            raise BadRecordError(
                "the chat template ends assistant turns with no special token",
                f"turn {place + 1}; a model trained so would never stop: end assistant turns with the "
                "end-of-sequence token in the template",
            )
        return self._answer_start(text, turns[:place], before, content_start), found.end()

    def _answer_start(self, text: str, turns: list[dict[str, str]], before: str, content_start: int) -> int:
        if not turns:
            return content_start
        prompted = self._render(turns, add_generation_prompt=True)
        if prompted != before:  # the template's own answer to "where does the assistant begin to speak"
            return min(_common_length(text, prompted), content_start)
        return content_start if text[len(before) : content_start].strip() else len(before)

    def _with_end_of_turn(self, text: str, span: Span) -> Span:
        """Markers that stop just before the end-of-sequence token leave it out by mistake: it is taken in."""
        start, end = span
        if text[start:end].rstrip().endswith(self._special_tokens):
            return span
        found = self._terminator.match(text, end)
        return (start, found.end()) if found and found[1] == self._tokenizer.eos_token else span

    def _render(self, turns: list[dict[str, str]], *, add_generation_prompt: bool = False) -> str:
        return str(self._call(turns, add_generation_prompt=add_generation_prompt)[0][0])

    def _render_marked(self, turns: list[dict[str, str]]) -> tuple[str, list[Span]]:
        texts, spans = self._call(turns, return_assistant_tokens_mask=True)
        return texts[0], [(int(start), int(end)) for start, end in spans[0]]

    def _call(self, turns: list[dict[str, str]], **options: Any) -> tuple[list[str], list[list[Span]]]:
        try:
            options |= self._tokenizer.special_tokens_map
            # It is typed as text, but returns texts and spans.
            rendered: Any = render_jinja_template(conversations=[turns], chat_template=self.text, **options)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadRecordError("the chat template refuses the record", _first_line(error)[:120]) from error
        return rendered  # type: ignore[no-any-return]


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Longest first, so that a search prefers the longest."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    named = {str(token) for token in tokenizer.all_special_tokens}
    return tuple(sorted(added | named, key=lambda token: (-len(token), token)))


def _common_length(first: str, second: str) -> int:
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
