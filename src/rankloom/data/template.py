"""Which characters of a rendered chat are trained: assistant turns and their end-of-turn token, nothing else.

A template with ``{% generation %}`` markers says itself where the assistant speaks. For one without, each
assistant turn is found by rendering the beginnings of the chat. What cannot be found is refused, and so is a
template that leaves out something the record says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

from rankloom.data.frames import Frame
from rankloom.data.omissions import Omissions
from rankloom.data.renderings import Renderings
from rankloom.errors import UserError
from rankloom.records import Message
from rankloom.records.record import BadRecordError

__all__ = ["TRAIN_ON", "ChatTemplate", "Span"]

Span = tuple[int, int]  # characters of the rendered text, the end not included
Turn = dict[str, Any]
MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
TRAIN_ON = ("all_turns", "last_turn", "all")


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: one with a chat template.
        name: what messages call it, for example the model folder.
        train_on: "all_turns" of the assistant, its "last_turn", or "all" of the text; turns that the record
            says are not to be trained are left out of each.

    Raises:
        UserError: it has no template, or several and no default, or one that is no valid Jinja.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str, train_on: str = "all_turns") -> None:
        if train_on not in TRAIN_ON:
            raise UserError(f'data.train_on is "{train_on}"; use "all_turns", "last_turn" or "all"')
        try:
            self.text = str(tokenizer.get_chat_template())
            self._compiled: Any = _compile_jinja_template(self.text)
        except (ValueError, jinja2.TemplateError) as error:
            raise UserError(f"{name}: no usable chat template: {_first_line(error)}") from error
        self.name = f"chat template of {name}"
        self.train_on = train_on
        self.has_markers = MARKER.search(self.text) is not None
        self._variables = dict(tokenizer.special_tokens_map)
        self._eos_token = tokenizer.eos_token
        self._special_tokens = special_tokens(tokenizer)
        self._omissions = Omissions(self._render, turn_of)
        self._frame: Frame | None = None
        choices = "|".join(map(re.escape, self._special_tokens)) or "(?!)"  # (?!) never matches
        self._terminator = re.compile(rf"\s*({choices})")

    def spans(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[str, list[Span]]:
        """The rendered chat, and the spans of it that are trained, in order.

        Raises:
            BadRecordError: the template refuses the chat, leaves out a part of it, or a turn that has to be
                told from the rest cannot be found in its text.
        """
        chat = Renderings(self._render, [turn_of(message) for message in messages], tools)
        marked = self._marked(chat) if self.has_markers else None
        text = chat.whole if marked is None else marked[0]
        calls = bool(tools) or any(message.tool_calls for message in messages)
        if calls:
            self._omissions.refuse(messages, tools, text)  # before a call is sought in it
        wanted = self._wanted(messages)
        if marked is not None and self.train_on != "all":
            every = [self._with_end_of_turn(text, span) for span in marked[1]]
            found = [span for span in _chosen(every, messages, wanted) if span[0] < span[1]]
        else:
            framed = self._framed(text, messages, wanted)
            found = framed or [self._derive_span(chat, messages[place], place) for place in wanted]
        if not calls:
            self._omissions.refuse(messages, tools, text)
        return text, _without(len(text), found) if self.train_on == "all" else found

    def rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]], mark: Callable[[str], str]
    ) -> str:
        """The chat with ``mark`` applied to everything in it that is not of the template. Raises
        BadRecordError as `spans`."""
        turns = [_mapped(turn_of(message), mark) for message in messages]
        return self._render(turns, [_mapped(tool, mark) for tool in tools])

    def _wanted(self, messages: Sequence[Message]) -> list[int]:
        """The turns to be found: those to train, or those to leave out where all else is trained."""
        answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if self.train_on == "all":
            for place, message in enumerate(messages):
                if message.role != "assistant" and not message.train:
                    detail = f'turn {place + 1} has "train": false; with data.train_on: all only answers can'
                    raise BadRecordError("wrong choice of what to train", detail)
            return [place for place in answers if not messages[place].train]
        chosen = answers[-1:] if self.train_on == "last_turn" else answers
        return [place for place in chosen if messages[place].train]

    def _framed(self, text: str, messages: Sequence[Message], wanted: list[int]) -> list[Span] | None:
        """What `_derive_span` would find, where a known frame tells it."""
        every = self._frame.spans(text, messages) if self._frame is not None else None
        return None if every is None else _chosen(every, messages, wanted)

    def _derive_span(self, chat: Renderings, message: Message, place: int) -> Span:
        text, before, after = chat.whole, chat.first(place), chat.first(place + 1).rstrip()
        if not text.startswith(before):
            raise _not_told(place)
        prompted = chat.prompted(place)
        header = len(prompted) if text.startswith(prompted) else len(before)
        start, end, terminator = (
            self._call_place(text, after, header, place)
            if message.tool_calls
            else self._content_place(text, message.content.strip(), header, place)
        )
        if not after.endswith(terminator) or terminator in text[len(before) : start]:
            raise _no_end(place)
        if self._frame is None and not message.tool_calls and before and header == len(prompted) == start:
            self._learn_frame(prompted.removeprefix(before), terminator)
        return self._answer_start(text, before, prompted, start, is_first=place == 0), end

    def _learn_frame(self, opening: str, end: str) -> None:
        if any(token in opening for token in self._special_tokens):
            self._frame = Frame(opening, end)

    def _content_place(self, text: str, content: str, header: int, place: int) -> tuple[int, int, str]:
        """Start of the content, end and text of the token that ends it: the first place where such a token
        follows, since a short content can also stand in the header of its turn."""
        first = start = text.find(content, header)
        while start >= 0:
            found = self._terminator.match(text, start + len(content))
            if found is not None:
                return start, found.end(), found[1]
            start = text.find(content, start + 1)
        raise _not_told(place) if first < 0 else _no_end(place)

    def _call_place(self, text: str, after: str, header: int, place: int) -> tuple[int, int, str]:
        """The same for a turn with tool calls, which is all that the turn adds to the text."""
        if not text.startswith(after) or len(after) <= header:
            raise _not_told(place)
        terminator = next((token for token in self._special_tokens if after.endswith(token)), None)
        if terminator is None:
            raise _no_end(place)
        return header, len(after), terminator

    def _answer_start(self, text: str, before: str, prompted: str, start: int, *, is_first: bool) -> int:
        if is_first:
            return start
        if prompted != before:  # the template's own answer to "where does the assistant begin to speak"
            return min(_common_length(text, prompted), start)
        return start if text[len(before) : start].strip() else len(before)

    def _with_end_of_turn(self, text: str, span: Span) -> Span:
        """Markers that stop just before the end-of-sequence token leave it out by mistake: it is taken in."""
        start, end = span
        if start == end or text[start:end].rstrip().endswith(self._special_tokens):
            return span
        found = self._terminator.match(text, end)
        return (start, found.end()) if found and found[1] == self._eos_token else span

    def _render(
        self, turns: list[Turn], tools: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = False
    ) -> str:
        render = self._compiled.render
        return str(
            _checked(render, **self._arguments(turns, tools, add_generation_prompt=add_generation_prompt))
        )

    def _marked(self, chat: Renderings) -> tuple[str, list[Span]]:
        arguments = self._arguments(chat.turns, chat.tools)
        text, spans = _checked(_render_with_assistant_indices, self._compiled, **arguments)
        return text, [(int(start), int(end)) for start, end in spans]

    def _arguments(
        self, turns: list[Turn], tools: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = False
    ) -> dict[str, Any]:
        chat = {
            "messages": turns,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._variables | chat


def turn_of(message: Message) -> Turn:
    """A message as ``apply_chat_template`` takes it."""
    turn: Turn = {"role": message.role, "content": message.content}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Longest first, so that a search prefers the longest."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    named = {str(token) for token in tokenizer.all_special_tokens}
    return tuple(sorted(added | named, key=lambda token: (-len(token), token)))


def _chosen(spans: list[Span], messages: Sequence[Message], wanted: Sequence[int]) -> list[Span]:
    """Of the marked spans, one or more an answer, those of the answers that are wanted."""
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if list(wanted) == answers:
        return spans
    if len(spans) != len(answers):
        raise BadRecordError(
            "the marked spans cannot be told apart by turn",
            f"{len(spans)} are marked for {len(answers)} assistant turns, not all of which are to be trained",
        )
    return [spans[answers.index(place)] for place in wanted]


def _without(length: int, left_out: Sequence[Span]) -> list[Span]:
    """0 .. length without some spans of it, which are in order."""
    borders = [0, *(border for span in left_out for border in span), length]
    return [(a, b) for a, b in zip(borders[::2], borders[1::2], strict=True) if a < b]


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _checked(render: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return render(*args, **options)
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise BadRecordError("the chat template refuses the record", _first_line(error)[:120]) from error


def _not_told(place: int) -> BadRecordError:
    return BadRecordError(
        "the assistant turns cannot be told from the rest of the rendered chat",
        f"turn {place + 1} is rendered differently on its own; put {{% generation %}} markers in the "
        "template",
    )


def _no_end(place: int) -> BadRecordError:
    return BadRecordError(
        "the chat template ends assistant turns with no special token",
        f"turn {place + 1}; a model trained so would never stop: end assistant turns with the "
        "end-of-sequence token in the template",
    )


def _common_length(first: str, second: str) -> int:
    if first.startswith(second):
        return len(second)
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first.startswith(second[:middle]) else (low, middle - 1)
    return low


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
