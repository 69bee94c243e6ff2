"""The texts of one chat and of its beginnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Renderings"]


class Renderings:
    """The texts of the beginnings of one chat, each rendered once and when asked for."""

    def __init__(
        self, render: Callable[..., str], turns: list[dict[str, Any]], tools: Sequence[Mapping[str, object]]
    ) -> None:
        self.turns, self.tools = turns, tools
        self._render = render
        self._known: dict[int, str] = {}

    @property
    def whole(self) -> str:
        return self.first(len(self.turns))

    def first(self, count: int) -> str:
        """The text of the first ``count`` turns; none for 0, which templates refuse."""
        if count == 0:
            return ""
        if count not in self._known:
            self._known[count] = self._render(self.turns[:count], self.tools)
        return self._known[count]

    def prompted(self, count: int) -> str:
        """The same with what the template puts before an answer."""
        if count == 0:
            return ""
        return self._render(self.turns[:count], self.tools, add_generation_prompt=True)
