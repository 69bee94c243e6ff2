"""Two jobs in the terminal: the verdict, what differs, and the ranks row under row, in 80 columns."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.text import Text

from rankloom.explain.comparison_types import FIELDS, Comparison, Difference, GroupChange, LinkChange
from rankloom.explain.terminal_style import columns_width, indented, print_table, some_ranks, table
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import LEVEL_WORDS, UNKNOWN, Level

__all__ = ["MAX_RANKS", "print_comparison"]

MAX_RANKS = 32
HEADINGS = {"weight_shard": "weight\nshard", "pp": "stage"}
CHANGED = "bold"
NONE = "none"  # of a kind of group that a job does not have


def print_comparison(comparison: Comparison, *, console: Console) -> None:
    """The verdict first, then what differs: settings, sizes, ranks (A over B), groups, links. What does not
    differ is left out."""
    console.print(Text.assemble(("A ", "bold"), comparison.a.title))
    console.print(Text.assemble(("B ", "bold"), comparison.b.title))
    console.print()
    indented(console, comparison.verdict, by=0)
    console.print()
    _print_settings(comparison.settings, console=console)
    _print_sizes(comparison, console=console)
    _print_ranks(comparison, console=console)
    _print_groups([group for group in comparison.groups if group.differs], console=console)
    for level in LEVEL_WORDS:
        links = [link for link in comparison.links if link.level == level and link.differs]
        _print_links(links, level=level, console=console)


def _print_settings(settings: tuple[Difference, ...], *, console: Console) -> None:
    if not settings:
        return
    made = table("setting", "", "value", "source", numbers=("value",), fixed=("setting", "", "source"))
    for row in settings:
        made.add_row(row.name, "A", _plain(row.a), row.source_a)
        made.add_row("", "B", _plain(row.b), row.source_b)
    print_table(console, "Settings that differ", made)


def _print_sizes(comparison: Comparison, *, console: Console) -> None:
    pairs = {
        "rows a lane takes in a step": comparison.rows_per_lane,
        "ranks a plain reshape misplaces": comparison.reshape_wrong,
    }
    rows = [(row.name, _plain(row.a), _plain(row.b)) for row in comparison.sizes]
    rows += [(name, _plain(a), _plain(b)) for name, (a, b) in pairs.items() if a != b]
    a, b = comparison.parameter_bytes
    if a != b:
        rows.append(("bytes of parameters on a rank", _bytes(a), _bytes(b)))
    if not rows:
        return
    made = table("size", "A", "B", numbers=("A", "B"), fixed=("size",))
    for texts in rows:
        made.add_row(*texts)
    print_table(console, "Sizes that differ", made)


def _print_ranks(comparison: Comparison, *, console: Console) -> None:
    """The ranks that differ, A over B; a number that changes has a star in B."""
    ranks = comparison.ranks
    differing = np.flatnonzero(ranks.changed(*FIELDS))
    if not differing.size:
        return
    known = [name for name in FIELDS if (ranks.a[name] != UNKNOWN).any() or (ranks.b[name] != UNKNOWN).any()]
    headings = ["rank", "", *(HEADINGS.get(name, name) for name in known)]
    made = table(*headings, numbers=headings)
    changed = {name: ranks.changed(name) for name in known}
    for i in differing[:MAX_RANKS].tolist():
        made.add_row(str(ranks.ranks[i]), "A", *(f"{_number(ranks.a[name], i)} " for name in known))
        made.add_row("", "B", *(_marked(ranks.b[name], i, changed=bool(changed[name][i])) for name in known))
    print_table(console, "Ranks that differ", made, caption=_caption(comparison, len(differing)))


def _caption(comparison: Comparison, num_differing: int) -> str:
    both = len(comparison.ranks.ranks)
    counts = [f"{name} {number}" for name, number in comparison.ranks.counts.items() if number]
    shown = f"the first {MAX_RANKS} of " if num_differing > MAX_RANKS else ""
    only = [
        f"; {number} in {name} only"
        for name, number in (("A", comparison.only_a), ("B", comparison.only_b))
        if number
    ]
    others = comparison.other_rows | comparison.other_tokens | comparison.other_shard
    same_numbers = int((others & ~comparison.ranks.changed(*FIELDS)).sum())
    return (
        f"{shown}{num_differing} ranks that differ, of {both} in both{''.join(only)}; * differs from A;"
        f" ranks that change: {', '.join(counts)}"
        + f"; {same_numbers} more have the same numbers, but other parts, since sizes differ"
        * bool(same_numbers)
    )


def _print_groups(groups: list[GroupChange], *, console: Console) -> None:
    if not groups:
        return
    headings = ("axes", "A", "B", "disappear", "appear")
    rows = [
        (
            group.kind,
            _number_by_size(group.num_a, group.size_a),
            _number_by_size(group.num_b, group.size_b),
            str(len(group.disappear)),
            str(len(group.appear)),
        )
        for group in groups
    ]
    made = table(*headings, "the first that appears", numbers=headings[3:], fixed=headings[:3])
    room = console.width - 1 - columns_width(headings, rows)
    for texts, group in zip(rows, groups, strict=True):
        made.add_row(*texts, some_ranks(group.appear[0], width=room) if group.appear else "")
    print_table(
        console, "Groups that differ", made, caption="number x ranks; groups of one rank are left out"
    )


def _print_links(links: list[LinkChange], *, level: Level, console: Console) -> None:
    if not links:
        return
    headings = ("group", "A", "B", "bytes over a link, A", "B ")
    made = table(*headings, numbers=headings[3:], fixed=headings[:3])
    for link in links:
        made.add_row(
            link.group,
            f"{link.crossing_a} of {link.num_a}" if link.num_a else NONE,
            f"{link.crossing_b} of {link.num_b}" if link.num_b else NONE,
            _bytes(link.link_bytes_a) if link.num_a else NONE,
            _bytes(link.link_bytes_b) if link.num_b else NONE,
        )
    print_table(
        console, f"Groups that leave {LEVEL_WORDS[level]}s, in other number or with other bytes", made
    )


def _number_by_size(number: int, size: int) -> str:
    return f"{number} x {size}" if number else NONE


def _number(values: IntArray, at: int) -> str:
    return "?" if values[at] == UNKNOWN else str(values[at])


def _marked(values: IntArray, at: int, *, changed: bool) -> Text:
    return Text(f"{_number(values, at)}*", style=CHANGED) if changed else Text(f"{_number(values, at)} ")


def _plain(value: int | str | None) -> str:
    return "-" if value is None else str(value)


def _bytes(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
