"""How a template frames an answer, learnt from one that was found by rendering, to find others without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankloom.records import Message

__all__ = ["Frame"]

SPACES = re.compile(r"\s*")


@dataclass(frozen=True)
class Frame:
    """What stands before and after an answer.

    Attributes:
        opening: the text that asks for an answer; it holds a special token, which the template alone writes.
        end: the special token that ends it.
    """

    opening: str
    end: str

    def spans(self, text: str, messages: Sequence[Message]) -> list[tuple[int, int]] | None:
        """The span of each assistant turn, in characters of the rendered ``text``: from behind its opening to
        the end of its end token.

        None unless the text has as many openings as there are such turns, and each is followed by the content
        of its turn and the end token, with nothing but spaces between them.
        """
        answers = [message for message in messages if message.role == "assistant"]
        if text.count(self.opening) != len(answers):
            return None
        found = []
        place = 0
        for message in answers:
            start = text.index(self.opening, place) + len(self.opening)
            place = _after(text, message.content.strip(), start)
            place = _after(text, self.end, place) if place else 0
            if not place or message.tool_calls:
                return None
            found.append((start, place))
        return found


def _after(text: str, wanted: str, place: int) -> int:
    """Where ``wanted`` ends if it stands at ``place``, spaces aside; otherwise 0."""
    spaces = SPACES.match(text, place)
    assert spaces is not None, "it matches nothing too"
    return spaces.end() + len(wanted) if text.startswith(wanted, spaces.end()) else 0
