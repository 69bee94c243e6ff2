"""Marks: places in a text for what only a running shell could know, each with its name.

``mark("GBS")`` survives everything a text goes through, so a value that matters and is not known can be named
in the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankloom.config.foreign.shell_spans import MARK_CLOSE, MARK_OPEN

__all__ = [
    "MARK",
    "is_computed",
    "is_mark",
    "mark",
    "split_blanks",
    "unknowns",
    "why_unknown",
    "without_marks",
]

MARK = re.compile(f"{MARK_OPEN}([^{MARK_CLOSE}]*){MARK_CLOSE}")
_NOT_BLANK = re.compile(rf"(?:{MARK.pattern}|[^ \t\n])+")


def mark(name: str) -> str:
    """A place in a text for something that is not known: a variable, "$1" or "$(nproc)"."""
    return f"{MARK_OPEN}{name}{MARK_CLOSE}"


def unknowns(text: str) -> tuple[str, ...]:
    """What is not known in a text, by name, each once."""
    return tuple(dict.fromkeys(MARK.findall(text)))


def is_mark(text: str) -> bool:
    """Whether nothing of a text is known."""
    return MARK.fullmatch(text) is not None


def without_marks(text: str) -> str:
    """The text as one would write it: marks become "$NAME" again."""
    return MARK.sub(lambda m: m[1] if m[1].startswith(("$", "`")) else f"${m[1]}", text)


def is_computed(name: str) -> bool:
    """Whether what is not known is something that the script computes, as "$(nproc)" or "${M[tp]}"."""
    return name.startswith(("$(", "`", "${", "<(", ">("))


def why_unknown(names: Iterable[str], origin: str) -> str:
    """ "N is not set in train.sh, and $(nproc) is only known when the script runs"."""
    reasons = []
    for name in dict.fromkeys(names):
        if is_computed(name):
            reasons.append(f"{name} is only known when the script runs")
        elif name.startswith("$"):
            reasons.append(f"{name} is an argument of the script, which is not known here")
        else:
            reasons.append(f"{name} is not set in {origin}")
    return ", and ".join(reasons)


def split_blanks(text: str) -> list[str]:
    """The parts between blanks; blanks inside a mark are none."""
    return [match[0] for match in _NOT_BLANK.finditer(text)]
