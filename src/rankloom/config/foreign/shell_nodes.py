"""What a script is made of: commands, branches, loops and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankloom.config.foreign.shell_words import Word

__all__ = [
    "AndOr",
    "Branch",
    "Case",
    "Clause",
    "Command",
    "Function",
    "Group",
    "Loop",
    "Node",
    "Part",
    "commands_in",
]


@dataclass(frozen=True)
class Command:
    """One simple command, assignments in front of it included; ``negated``: after a ``!``."""

    line: int
    words: tuple[Word, ...]
    negated: bool = False


@dataclass(frozen=True)
class Clause:
    """A condition and what is done if it holds. ``text``: the condition as written; "" of an ``else``."""

    condition: tuple[Node, ...]
    text: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Branch:
    """``if``, with its ``elif`` and ``else``."""

    line: int
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Case:
    """``case WORD in PATTERN) ... ;; esac``. The text of a clause is its patterns: "7b|8b"."""

    line: int
    subject: Word
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Loop:
    """``for NAME in ...``; ``while`` and ``until`` have a condition instead, ``for (( ))`` its expression."""

    line: int
    word: str
    name: str
    items: tuple[Word, ...]
    condition: tuple[Node, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """Commands of which nothing is left behind: ``( ... )`` and each part of a pipe; or ``{ ... }``."""

    line: int
    body: tuple[Node, ...]
    apart: bool


@dataclass(frozen=True)
class Part:
    """One part of ``A && B || C``. ``joint``: what stands before it, "" of the first."""

    joint: str
    text: str
    node: Node


@dataclass(frozen=True)
class AndOr:
    line: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Function:
    name: str
    body: tuple[Node, ...]


Node = Command | Branch | Case | Loop | Function | Group | AndOr


def commands_in(nodes: Iterable[Node]) -> Iterator[str]:
    """The first word of every command, as far as it stands there as it is."""
    for node in nodes:
        if isinstance(node, Command):
            yield node.words[0].plain
        elif isinstance(node, AndOr):
            yield from commands_in(part.node for part in node.parts)
        elif isinstance(node, Branch | Case):
            for clause in node.clauses:
                yield from commands_in((*clause.condition, *clause.body))
        elif isinstance(node, Loop):
            yield from commands_in((*node.condition, *node.body))
        else:
            yield from commands_in(node.body)
