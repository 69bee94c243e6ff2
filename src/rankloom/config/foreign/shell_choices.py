"""Branches of a script that were not taken, and what is said about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankloom.config.foreign.shell_marks import is_computed, without_marks
from rankloom.config.foreign.shell_nodes import Node, commands_in
from rankloom.config.foreign.shell_values import Field, Scope

__all__ = [
    "LEAVING",
    "Choice",
    "Invocation",
    "Script",
    "changed_names",
    "differences",
    "inner_script",
    "may_leave",
    "never_runs",
    "value_shown",
    "reason",
]

LEAVING = frozenset({"break", "continue", "return", "exit"})


@dataclass(frozen=True)
class Invocation:
    """A command that would be started."""

    words: tuple[Field, ...]
    line: int


@dataclass(frozen=True)
class Choice:
    """An ``if`` or ``case`` whose branches set variables differently. ``text`` says which was taken."""

    line: int
    names: frozenset[str]
    text: str
    hidden: tuple[Invocation, ...]  # what branches that were not taken would start


@dataclass(frozen=True)
class Script:
    """What a script comes to. ``sourced``: files it reads settings from, which are not looked at."""

    invocations: tuple[Invocation, ...]
    scope: Scope
    choices: tuple[Choice, ...]
    sourced: tuple[str, ...]


def reason(unset: Sequence[str], *, known: bool) -> str:
    """Why a branch was taken: ``unset``, what its conditions need and nobody knows."""
    if unset and not any(map(is_computed, unset)):
        return f"{' and '.join(unset)} {'are' if len(unset) > 1 else 'is'} not set, so "
    if unset or not known:
        return "whether it holds cannot be known here; "
    return ""


def never_runs(truth: bool | None, word: str) -> bool:
    """Whether a loop has no round at all."""
    return truth is (word == "until")


def may_leave(nodes: tuple[Node, ...]) -> bool:
    """Whether a loop may end early."""
    return not LEAVING.isdisjoint(commands_in(nodes))


def inner_script(arguments: tuple[Field, ...]) -> tuple[Field, tuple[Field, ...]] | None:
    """The script inside ``bash -c SCRIPT`` or ``eval WORDS``, and the words in front of it."""
    texts = [a.text for a in arguments]
    if texts[0] == "eval":
        names = frozenset[str]().union(*(a.names for a in arguments))
        return Field(" ".join(texts[1:]), arguments[0].line, names), ()
    for i, text in enumerate(texts[:-2]):
        if text.rpartition("/")[2] in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", texts[i + 1]):
            return arguments[i + 2], arguments[:i]
    return None


def value_shown(scope: Scope, name: str) -> str | None:
    stored = scope.variables.get(name)
    return None if stored is None else " ".join(without_marks(f.text) for f in stored)


def changed_names(before: Scope, after: Scope) -> set[str]:
    """The variables with a name that have another value now."""
    before.spend(len(after.variables))
    names = (name for name in after.variables if name.isidentifier())
    return {name for name in names if after.variables[name] is not before.variables.get(name)}


def differences(names: set[str], scope: Scope, others: Sequence[Scope]) -> str:
    """ ": NUM_LAYERS=32 (another branch: NUM_LAYERS=80)"."""
    texts = []
    for name in sorted(names)[:3]:
        here = value_shown(scope, name)
        there = dict.fromkeys(value_shown(o, name) for o in others)
        elsewhere = " or ".join(f"{name}={t}" for t in there if t and t != here) or "nothing"
        texts.append(f"{name}={here}" if here else f"{name} is not set")
        texts[-1] += f" (another branch: {elsewhere})"
    more = len(names) - len(texts)
    return "".join([": " if texts else "", ", ".join(texts), f" and {more} more" * (more > 0)])
