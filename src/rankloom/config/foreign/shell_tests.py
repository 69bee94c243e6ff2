"""Whether the condition of an ``if`` holds, as far as the script itself says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rankloom.config.foreign.shell_tree import Command, Node
from rankloom.config.foreign.shell_values import Scope, mark, unknowns

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
    result: bool | None = None
    joint, unset = ";", dict[str, None]()
    for node in condition:
        if not isinstance(node, Command):
            return None, tuple(unset)
        truth, missing = _truth_of_one(node, scope)
        unset.update(dict.fromkeys(missing))
        if joint == "&&":
            result = False if False in (result, truth) else None if None in (result, truth) else True
        elif joint == "||":
            result = True if True in (result, truth) else None if None in (result, truth) else False
        else:
            result = truth if joint != "|" else None
        joint = node.joint
    return result, tuple(unset)


def _truth_of_one(command: Command, scope: Scope) -> Truth:
    words = command.words
    first = words[0].plain if words else ""
    if first.startswith("((") or (words and words[0].pieces[0].text == "(("):
        value = scope.arithmetic(words[0].pieces[-1].text)
        return (None, unknowns(value.text)) if unknowns(value.text) else (value.text != "0", ())
    if first in ("true", ":", "false"):
        return first != "false", ()
    if first not in ("[", "[[", "test"):
        return None, ()
    texts = [scope.joined(word).text for word in words[1:]]
    texts = texts[:-1] if texts and texts[-1] in ("]", "]]") else texts
    unset = tuple(dict.fromkeys(name for text in texts for name in unknowns(text)))
    if any(name.startswith(("$(", "`")) for name in unset):
        return None, unset
    return _holds([_emptied(text) for text in texts]), unset


def _emptied(text: str) -> str:
    for name in unknowns(text):
        text = text.replace(mark(name), "")
    return text


def _holds(texts: list[str]) -> bool | None:
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in texts:
            at = texts.index(joint)
            sides = [_holds(texts[:at]), _holds(texts[at + 1 :])]
            return None if None in sides else combine(bool(side) for side in sides)
    if texts and texts[0] == "!":
        inner = _holds(texts[1:])
        return None if inner is None else not inner
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
