"""Whether the condition of an ``if`` holds, as far as the script itself says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rankloom.config.foreign.shell_builtins import TESTS
from rankloom.config.foreign.shell_marks import is_computed, mark, unknowns
from rankloom.config.foreign.shell_nodes import AndOr, Command, Group, Node
from rankloom.config.foreign.shell_values import Scope, is_assignment

__all__ = ["Truth", "truth_of"]

Truth = tuple[bool | None, tuple[str, ...]]  # None: cannot be known; and the variables that are not set

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "-eq": lambda a, b: a == b,
        "-ne": lambda a, b: a != b,
        "-gt": lambda a, b: a > b,
        "-ge": lambda a, b: a >= b,
        "-lt": lambda a, b: a < b,
        "-le": lambda a, b: a <= b,
    }
)


def truth_of(condition: tuple[Node, ...], scope: Scope) -> Truth:
    """Of tests joined by && and ||. A variable that is not set counts as empty, as it does in a shell."""
    if not condition:
        return None, ()
    last = condition[-1]
    if isinstance(last, Command):
        truth, unset = _truth_of_one(last, scope)
        return (not truth if last.negated and truth is not None else truth), unset
    if isinstance(last, Group) and not last.apart:
        return truth_of(last.body, scope)
    if not isinstance(last, AndOr):
        return None, ()
    result: bool | None = True
    missing = dict[str, None]()
    for part in last.parts:
        truth, names = truth_of((part.node,), scope)
        missing.update(dict.fromkeys(names))
        if part.joint == "&&":
            result = False if False in (result, truth) else None if None in (result, truth) else True
        elif part.joint == "||":
            result = True if True in (result, truth) else None if None in (result, truth) else False
        else:
            result = truth
    return result, tuple(missing)


def _truth_of_one(command: Command, scope: Scope) -> Truth:
    words = command.words
    first = words[0].plain
    if words[0].pieces and words[0].pieces[0].text == "((":
        value = scope.arithmetic(words[0].pieces[-1].text)
        return (None, unknowns(value.text)) if unknowns(value.text) else (value.text != "0", ())
    if all(map(is_assignment, words)):
        computed = any(p.kind == "unknown" for word in words for p in word.pieces)
        return (None if computed else True), ()
    if first in ("true", ":", "false"):
        return first != "false", ()
    if first not in TESTS:
        return None, ()
    texts = [scope.joined(word).text for word in words[1:]]
    texts = texts[:-1] if texts and texts[-1] in ("]", "]]") else texts
    unset = tuple(dict.fromkeys(name for text in texts for name in unknowns(text)))
    if any(map(is_computed, unset)):
        return None, unset
    return _holds([_emptied(text) for text in texts], patterns=first == "[["), unset


def _emptied(text: str) -> str:
    for name in unknowns(text):
        text = text.replace(mark(name), "")
    return text


def _holds(texts: list[str], *, patterns: bool) -> bool | None:
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in texts:
            at = texts.index(joint)
            sides = [_holds(side, patterns=patterns) for side in (texts[:at], texts[at + 1 :])]
            return None if None in sides else combine(bool(side) for side in sides)
    if texts and texts[0] == "!":
        inner = _holds(texts[1:], patterns=patterns)
        return None if inner is None else not inner
    if patterns and len(texts) == 3 and any(char in texts[2] for char in "*?["):
        return None
    return _simple(texts)


def _simple(texts: list[str]) -> bool | None:
    match texts:
        case [text]:
            return bool(text)
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, comparison, right] if comparison in _NUMBERS:
            try:
                return _NUMBERS[comparison](int(left), int(right))
            except ValueError:
                return None
    return None
