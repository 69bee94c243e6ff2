"""Tokens as lines of text: borders between them visible, nothing hidden, nothing wider than the terminal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

__all__ = ["BORDER", "TokenLine", "token_lines", "visible"]

BORDER = "\u2502"  # behind every token, so that spaces at an end can be seen


@dataclass(frozen=True)
class TokenLine:
    """Consecutive tokens of one kind, from token ``first`` on: each as (token, text)."""

    first: int
    pieces: tuple[tuple[int, str], ...]


def token_lines(texts: Sequence[str], kinds: Sequence[Hashable], *, width: int) -> Iterator[TokenLine]:
    """Lines of at most ``width`` columns, their borders included. A new one begins where the kind changes and
    behind a token with a line end.

    >>> [[text for _, text in line.pieces] for line in token_lines(["a b", "\\n", "c"], "xxx", width=9)]
    [['a b│', '⏎│'], ['c│']]
    """
    pieces: list[tuple[int, str]] = []
    used = 0
    for token, text in enumerate(texts):
        for part in _parts(visible(text) + BORDER, width):
            size = cell_len(part)
            begins = pieces and (kinds[token] != kinds[pieces[-1][0]] or used + size > width)
            if begins or (pieces and pieces[-1][0] != token and "\n" in texts[pieces[-1][0]]):
                yield TokenLine(pieces[0][0], tuple(pieces))
                pieces, used = [], 0
            pieces.append((token, part))
            used += size
    if pieces:
        yield TokenLine(pieces[0][0], tuple(pieces))


def visible(text: str) -> str:
    """What cannot be seen, or would move the cursor, as a sign or its number.

    >>> visible("a b\\n\\t\\x1b")
    'a b⏎⇥\\\\x1b'
    """
    if text.isprintable():
        return text
    return "".join(_SIGNS.get(c) or (c if c.isprintable() else _escaped(c)) for c in text)


_SIGNS = {"\n": "\u23ce", "\t": "\u21e5"}


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _parts(text: str, width: int) -> list[str]:
    return [text] if cell_len(text) <= width else chop_cells(text, width)
