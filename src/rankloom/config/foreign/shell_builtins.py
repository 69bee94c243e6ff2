"""What a shell's own commands do to variables; those whose effect cannot be known make them unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from rankloom.config.foreign.shell_arithmetic import assigned_in
from rankloom.config.foreign.shell_values import Field, Scope
from rankloom.config.foreign.shell_words import Word

__all__ = ["BUILTINS", "DECLARING", "TESTS", "declare", "declared_in", "set_arguments"]

DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
TESTS = frozenset({"[", "[[", "test"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def declared_in(words: Iterable[Word]) -> list[str]:
    """The names in ``-x N=2 M``."""
    matches = (_NAME.match("".join(p.text for p in word.pieces)) for word in words)
    return [match[0] for match in matches if match]


def declare(scope: Scope, words: Sequence[Word], line: int) -> None:
    """Carries out ``declare -i N=2`` or ``export A B=1``, from its second word on."""
    options = "".join(word.plain[1:] for word in words if word.plain.startswith("-"))
    names = declared_in(words)
    if "i" in options:
        scope.integers.update(names)
    for word in words:
        scope.assign(word)
    if "A" in options or "n" in options:  # keys that are words; another name for a variable
        values = [f.text for name in names for f in scope.variables.get(name, ())]
        others = values if "n" in options else []
        for name in [*names, *others]:
            scope.forget([name], f"${{{name}[@]}}", line)


def set_arguments(scope: Scope, arguments: Sequence[Field]) -> None:
    """Makes $1, $2, ..., $@ and $# these."""
    for name in [name for name in scope.variables if name.isdigit()]:
        del scope.variables[name]
    count = Field(str(len(arguments)), arguments[0].line if arguments else 0)
    scope.variables |= {"@": tuple(arguments), "*": tuple(arguments), "#": (count,)}
    scope.variables |= {str(i + 1): (argument,) for i, argument in enumerate(arguments)}


def _set(scope: Scope, arguments: Sequence[Field]) -> None:
    texts = [a.text for a in arguments]
    if "--" in texts:
        set_arguments(scope, arguments[texts.index("--") + 1 :])
    elif texts and texts[0][:1] not in ("-", "+"):
        set_arguments(scope, arguments)


def _shift(scope: Scope, arguments: Sequence[Field]) -> None:
    if "@" not in scope.variables:
        return  # those of the script, which are not known anyway
    count = arguments[0].text if arguments else "1"
    if count.isdecimal():
        set_arguments(scope, scope.variables["@"][int(count) :])
    else:
        for name in [n for n in scope.variables if n.isdigit() or n in "@*#"]:
            del scope.variables[name]


def _unset(scope: Scope, arguments: Sequence[Field]) -> None:
    for argument in arguments:
        scope.variables.pop(argument.text, None)
        scope.integers.discard(argument.text)


def _read(scope: Scope, arguments: Sequence[Field]) -> None:
    names = [a.text for a in arguments if _NAME.fullmatch(a.text)]
    if arguments:
        scope.forget(names, f"$(read {' '.join(names)})", arguments[0].line)


def _print_into(scope: Scope, arguments: Sequence[Field]) -> None:
    for option, name in pairwise(arguments):
        if option.text == "-v":
            scope.forget([name.text], f"$(printf -v {name.text})", name.line)


def _let(scope: Scope, arguments: Sequence[Field]) -> None:
    for argument in arguments:
        scope.forget(assigned_in(argument.text), f"$(({argument.text}))", argument.line)


BUILTINS: Mapping[str, Callable[[Scope, Sequence[Field]], None]] = MappingProxyType(
    {
        "set": _set,
        "shift": _shift,
        "unset": _unset,
        "read": _read,
        "mapfile": _read,
        "readarray": _read,
        "getopts": _read,
        "printf": _print_into,
        "let": _let,
    }
)
