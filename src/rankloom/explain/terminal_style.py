"""What the terminal's tables and grids are made of. They fit 80 columns; colour is for terminals only.

Nothing is ever cut or wrapped inside a number: a line is filled with as many whole pieces as fit, and what is
left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = [
    "NARROWEST",
    "colour",
    "columns_width",
    "fit",
    "indented",
    "print_table",
    "some_ranks",
    "table",
    "terminal",
]

NARROWEST = 80
GAP = "  "
MAX_PIECES = 8  # of one set of ranks; more read as noise
# Colours that people tell apart however they see them, each with the ink that reads on it.
PALETTE = (
    "#000000 on #56b4e9",
    "#000000 on #e69f00",
    "#000000 on #009e73",
    "#000000 on #f0e442",
    "#ffffff on #0072b2",
    "#000000 on #d55e00",
    "#000000 on #cc79a7",
    "#000000 on #bbbbbb",
)


def terminal() -> Console:
    """Standard output, at least 80 columns wide: in a narrower terminal a table would lose numbers."""
    console = Console(highlight=False)
    if console.width < NARROWEST:
        console = Console(highlight=False, width=NARROWEST)
    return console


def table(*headings: str, numbers: Sequence[str] = (), fixed: Sequence[str] = ()) -> Table:
    """An empty table. Columns in ``numbers`` are flush right; those in neither ``numbers`` nor ``fixed`` may
    be wrapped, between words."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        right = heading in numbers
        made.add_column(
            heading,
            justify="right" if right else "left",
            header_style="dim",
            no_wrap=right or heading in fixed,
            overflow="fold",
        )
    return made


def columns_width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns that these take in a table, with the gap behind each."""
    return sum(len(GAP) + max(map(len, column)) for column in zip(headings, *rows, strict=True))


def print_table(console: Console, title: str, shown: Table, *, caption: str = "") -> None:
    """A table under its title, one column in from the left, with an empty line after it.

    Where numbers need more columns than there are, lines are longer; none is cut.
    """
    console.print(Text(title, style="bold"))
    needed = console.measure(shown).minimum + 1
    padded = Padding(shown, (0, 0, 0, 1), expand=False)
    console.print(padded, width=max(needed, console.width), crop=False)
    if caption:
        indented(console, Text(caption, style="dim italic"))
    console.print()


def indented(console: Console, text: str | Text, *, by: int = 1) -> None:
    """Text in the same column as the tables, wrapped between words."""
    console.print(Padding(text if isinstance(text, Text) else Text(text), (0, 0, 0, by)))


def colour(index: int) -> str:
    """The style of a lane, shard or the like; colours repeat, so the number stands in every cell too."""
    return PALETTE[index % len(PALETTE)]


def fit(
    count: int, piece: Callable[[int], str], *, width: int, num_lines: int = 1, limit: int | None = None
) -> str:
    """The first of ``count`` pieces, ``limit`` at most, as many as fill ``num_lines`` of ``width``, then how
    many are left out.

    >>> fit(30, lambda i: f"{i}-{i + 3}", width=24)
    '0-3  1-4  and 28 more'
    """
    lines = [""]
    for index in range(count):
        left, text = count - index, piece(index)
        line = f"{lines[-1]}{GAP}{text}" if lines[-1] else text
        rest = len(GAP + _more(left - 1)) if left > 1 and len(lines) == num_lines else 0
        if index == limit or (lines[-1] and len(line) + rest > width and len(lines) == num_lines):
            return "\n".join([*lines[:-1], f"{lines[-1]}{GAP}{_more(left)}"])
        if lines[-1] and len(line) > width:
            lines.append(text)
        else:
            lines[-1] = line
    return "\n".join(lines)


def some_ranks(ranks: Sequence[int], *, width: int) -> str:
    """Ascending numbers in at most ``width`` columns: stretches of neighbours, as many of them as fit.

    >>> some_ranks([0, 1, 2, 3, 8, 9], width=20), some_ranks(range(0, 900, 8), width=20)
    ('0-3,8,9', '0,8,16,24,32,..,896')
    """
    pieces = _stretches(ranks)
    for shown in range(min(len(pieces), MAX_PIECES), 0, -1):
        whole = shown == len(pieces)
        text = ",".join(pieces if whole else [*pieces[: shown - 1], "..", pieces[-1]])
        if len(text) <= width:
            return text
    return pieces[0] if len(pieces) == 1 else f"{pieces[0]},.."


def _stretches(numbers: Sequence[int]) -> list[str]:
    ends = [i for i, (a, b) in enumerate(pairwise(numbers), start=1) if b != a + 1]
    parts = [numbers[start:stop] for start, stop in pairwise([0, *ends, len(numbers)])]
    return [
        text
        for part in parts
        for text in ([f"{part[0]}-{part[-1]}"] if len(part) > 2 else [str(number) for number in part])
    ]


def _more(number: int) -> str:
    return f"and {number} more"
