"""Text of a message that spells a special token: it stays text, and the token is the template's alone.

The chat is rendered a second time with that text marked, which tells it from what the template wrote. Then
each token that the template wrote is spelled by one private character, and a copy of the tokenizer knows its
special tokens by these characters only. So the whole text is still tokenised at once, as if what the message
says were no token.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from rankloom.data.template import ChatTemplate, Span, special_tokens
from rankloom.records import Message
from rankloom.records.record import BadRecordError, cut

__all__ = ["LiteralText", "Respelled"]

FIRST_PRIVATE = 0x100000  # of Unicode's last private use plane: 65,534 characters that mean nothing
START, END = "\U0010fffc", "\U0010fffd"
REASON = "a message spells a special token"


@dataclass(frozen=True)
class Respelled:
    """A rendered chat for the copy of the tokenizer: its text, and the trained spans in it."""

    text: str
    spans: list[Span]


class LiteralText:
    """Finds and respells such chats. Args: the tokenizer, its template, and what tokenises whole texts."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, backend: Tokenizer
    ) -> None:
        self._template = template
        self._tokens = special_tokens(tokenizer)
        self._private = {token: chr(FIRST_PRIVATE + n) for n, token in enumerate(self._tokens)}
        self._special = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")
        self._beginnings = tuple(dict.fromkeys(token[:2] for token in self._tokens))
        # Other added tokens stay what they are; one that holds a special token hides it.
        self._added = re.compile(_longest_first({*tokenizer.get_added_vocab(), *self._tokens}) or "(?!)")
        self._backend = backend
        self._copy: Tokenizer | None = None
        self._unknown: int | None = None
        self._numbers = [self._backend.token_to_id(token) for token in self._tokens]

    def spelled_in(self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]]) -> str | None:
        """The first special token that a message spells, if any."""
        for text in _texts(messages, tools):
            if any(beginning in text for beginning in self._beginnings):
                found = self._special.search(text)
                if found:
                    return found[0]
        return None

    def respell(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]],
        rendered: str,
        spans: Sequence[Span],
        *,
        token: str,
    ) -> Respelled:
        """``rendered`` and ``spans`` (see `ChatTemplate.spans`) with the template's tokens respelled.

        Raises:
            BadRecordError: the template's tokens cannot be told from those of the messages, or the tokenizer
                cannot take one for text; ``token`` is named.
        """
        if self.copy is None:
            raise BadRecordError(REASON, f'"{cut(token, 30)}", and the tokenizer cannot take it for text')
        if any(char >= chr(FIRST_PRIVATE) for char in rendered):
            raise BadRecordError(REASON, f'"{cut(token, 30)}", beside characters of a private use plane')
        marked = self._template.rendered(messages, tools, self._mark)
        pieces = re.split(f"{START}(.*?){END}", marked, flags=re.DOTALL)  # text, marked, text, ...
        if "".join(pieces) != rendered:
            raise BadRecordError(REASON, f'"{cut(token, 30)}", and the chat template changes its text')
        text, places = self._spelled(pieces)
        return Respelled(text, [(_moved(a, places), _moved(b, places)) for a, b in spans])

    def check(self, encoding: Encoding, text: str, *, token: str) -> None:
        """Raises BadRecordError if the special tokens in the encoding of a respelled ``text`` are not those
        that the template wrote."""
        written = [ord(char) - FIRST_PRIVATE for char in text if char >= chr(FIRST_PRIVATE)]
        expected = [self._numbers[place] for place in written]
        # What no token spells is the unknown one, also in plain text.
        watched = {number for number in self._numbers if number not in (None, self._unknown)}
        if [n for n in encoding.ids if n in watched] != [n for n in expected if n in watched]:
            raise BadRecordError(REASON, f'"{cut(token, 30)}", and the tokenizer takes other text for it')

    @property
    def copy(self) -> Tokenizer | None:
        """The tokenizer that knows the special tokens by their private characters; None if there is none."""
        if self._copy is None:
            content = json.loads(self._backend.to_str())
            self._unknown = _unknown(content["model"], self._backend)
            self._copy = _respelled_tokenizer(content, self._backend, self._private)
        return self._copy

    def _mark(self, text: str) -> str:
        return self._special.sub(lambda found: f"{START}{found[0]}{END}", text)

    def _spelled(self, pieces: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """The new text, and where in the old one each respelled token ends with how much shorter the new text
        is up to there."""
        made: list[str] = []
        places: list[tuple[int, int]] = []
        offset = shorter = 0
        for place, piece in enumerate(pieces):
            if place % 2:
                made.append(piece)
            else:
                last = 0
                for found in self._added.finditer(piece):
                    if found[0] in self._private:
                        made += [piece[last : found.start()], self._private[found[0]]]
                        last = found.end()
                        shorter += len(found[0]) - 1
                        places.append((offset + last, shorter))
                made.append(piece[last:])
            offset += len(piece)
        return "".join(made), places


def _moved(border: int, places: Sequence[tuple[int, int]]) -> int:
    at = bisect_right(places, border, key=lambda place: place[0])
    return border - (places[at - 1][1] if at else 0)


def _unknown(model: Mapping[str, Any], backend: Tokenizer) -> int | None:
    """The token of what no other spells."""
    if model.get("unk_token") is not None:
        return backend.token_to_id(model["unk_token"])
    number = model.get("unk_id")
    return None if number is None else int(number)


def _respelled_tokenizer(
    content: dict[str, Any], backend: Tokenizer, private: Mapping[str, str]
) -> Tokenizer | None:
    """A copy with other names for its special tokens; None where it would not be the same otherwise."""
    model = content["model"]
    if any({*merge, "".join(merge)} & private.keys() for merge in _merges(model)):
        return None  # made of other tokens, and therefore found in plain text
    for added in content["added_tokens"]:
        added["content"] = private.get(added["content"], added["content"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {private.get(piece, piece): number for piece, number in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[private.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in private:
        model["unk_token"] = private[model["unk_token"]]
    content["truncation"] = content["padding"] = None
    try:
        made = Tokenizer.from_str(json.dumps(content))
    except Exception:  # the Rust side raises plain Exception
        return None
    same = all(made.token_to_id(private[t]) == backend.token_to_id(t) for t in private if _knows(backend, t))
    return made if same and _agree(backend, made, private) else None


def _merges(model: Mapping[str, Any]) -> Iterator[list[str]]:
    return (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", ()))


def _knows(backend: Tokenizer, token: str) -> bool:
    return backend.token_to_id(token) is not None


def _agree(backend: Tokenizer, made: Tokenizer, private: Mapping[str, str]) -> bool:
    """Both give the same ids where only the template writes tokens."""
    known = [token for token in private if _knows(backend, token)]
    probe = "".join(f"{token}a b\n{token} c" for token in known)
    respelled = "".join(f"{private[token]}a b\n{private[token]} c" for token in known)
    first = backend.encode(probe, add_special_tokens=False).ids
    return bool(first == made.encode(respelled, add_special_tokens=False).ids)


def _longest_first(tokens: set[str]) -> str:
    return "|".join(map(re.escape, sorted(tokens, key=lambda token: (-len(token), token))))


def _texts(messages: Sequence[Message], tools: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for message in messages:
        yield message.content
        if message.name is not None:
            yield message.name
        if message.tool_call_id is not None:
            yield message.tool_call_id
        yield from _leaves(list(message.tool_calls))
    if tools:
        yield from _leaves(list(tools))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
