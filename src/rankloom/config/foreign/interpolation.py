"""``${policy.x}``, ``${.sibling}`` and ``${mul:${a},${b}}`` in a nested mapping, as OmegaConf means them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import yaml

from rankloom.config.yaml_file import read_value

__all__ = ["MISSING", "Settings", "Unresolved"]

MISSING = "???"
_DEEPEST = 32
_MOST_REFERENCES = 10_000  # followed for one value: they may double with every step


def _divided(a: float, b: float) -> float:
    quotient = a / b
    return int(quotient) if quotient == int(quotient) else quotient


_RESOLVERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {"mul": operator.mul, "add": operator.add, "sub": operator.sub, "div": _divided, "max": max, "min": min}
)


class Unresolved(Exception):  # noqa: N818 - not an error of ours: a value that is not known
    """A value is not known. The text says why: "policy.seed is ???, a value to fill in"."""


@dataclass(frozen=True)
class Settings:
    """Values of a nested mapping by dotted path."""

    root: Mapping[str, object]
    followed: list[None] = field(default_factory=list)  # references, for the value that is asked for

    def has(self, path: str) -> bool:
        """Whether the path is there, whatever its value."""
        try:
            self._raw(path.split("."))
        except Unresolved:
            return False
        return True

    def get(self, path: str) -> object:
        """The value with everything filled in; None where there is no such path. Raises Unresolved."""
        parts = path.split(".")
        try:
            value = self._raw(parts)
        except Unresolved:
            return None
        self.followed.clear()
        return self._filled(value, parts, 0)

    def _raw(self, parts: Sequence[str], depth: int = 0) -> object:
        node: object = self.root
        for i, part in enumerate(parts):
            if isinstance(node, str) and "${" in node and depth < _DEEPEST:
                node = self._filled(node, parts[:i], depth + 1)
            if isinstance(node, Mapping) and part in node:
                node = node[part]
            elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            else:
                raise Unresolved(f"there is no {'.'.join(parts)}")
        return node

    def _filled(self, value: object, at: Sequence[str], depth: int) -> object:
        """A value at a path, its references followed."""
        if not isinstance(value, str):
            return value
        if value == MISSING:
            raise Unresolved(f"{'.'.join(at)} is {MISSING}, a value that has to be filled in")
        if depth > _DEEPEST:
            raise Unresolved(f"{'.'.join(at)} refers to itself, or is nested too deeply")
        if "${" not in value:
            return value
        pieces = _pieces(value)
        if len(pieces) == 1 and pieces[0][1]:
            return self._reference(pieces[0][0], at, depth)
        return "".join(str(self._reference(t, at, depth)) if inside else t for t, inside in pieces)

    def _reference(self, inner: str, at: Sequence[str], depth: int) -> object:
        """What ``${inner}`` at a path stands for."""
        self.followed.append(None)
        if len(self.followed) > _MOST_REFERENCES:
            raise Unresolved("it refers to too many other values")
        name, colon, rest = inner.partition(":")
        if colon and "${" not in name:
            return self._resolved(name.strip(), _arguments(rest), at, depth)
        inner = str(self._filled(inner, at, depth + 1)) if "${" in inner else inner.strip()
        path = inner.lstrip(".")
        up = len(inner) - len(path)
        parts = [*(at[: len(at) - up] if up else []), *path.replace("[", ".").replace("]", "").split(".")]
        return self._filled(self._raw(parts, depth + 1), parts, depth + 1)

    def _resolved(self, name: str, texts: Sequence[str], at: Sequence[str], depth: int) -> object:
        if name == "oc.env":
            if len(texts) > 1:
                return _as_yaml(texts[1])
            raise Unresolved(f"the environment variable {texts[0]} is not known here")
        values = [self._argument(text, at, depth + 1) for text in texts]
        if name not in _RESOLVERS:
            raise Unresolved(f"${{{name}:...}} is no function that is known here")
        call = f"${{{name}:{','.join(texts)}}}"
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < len(values):
            raise Unresolved(f"{call} takes numbers, not {', '.join(map(str, values))}")
        try:
            return _RESOLVERS[name](*numbers)
        except ZeroDivisionError:
            raise Unresolved(f"{call} divides by 0") from None
        except (TypeError, ValueError, OverflowError):
            raise Unresolved(f"{call} has no value") from None

    def _argument(self, text: str, at: Sequence[str], depth: int) -> object:
        value = self._filled(text, at, depth)
        return _as_yaml(value) if isinstance(value, str) else value


def _as_yaml(text: str) -> object:
    try:
        return read_value(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Unresolved(f"{text[:80]!r} is not valid YAML") from None


def _pieces(text: str) -> list[tuple[str, bool]]:
    """(text, whether it stood inside ``${}``): "a${b.c}" is [("a", False), ("b.c", True)]."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        depth, end = 1, start + 2
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise Unresolved(f"{text[:80].strip()} has a ${{ that is not closed")
        if start > at:
            pieces.append((text[at:start], False))
        pieces.append((text[start + 2 : end - 1], True))
        at = end
    return [*pieces, (text[at:], False)] if at < len(text) else pieces


def _arguments(text: str) -> list[str]:
    """Split at the commas that are in no braces."""
    parts, depth = [""], 0
    for char in text:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
