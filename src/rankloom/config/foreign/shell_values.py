"""The values of a script's variables, and words with the variables filled in.

What only a running shell could know stays in a text as a mark that names it: ``mark("GBS")``. Marks survive
everything a text goes through, so a value that matters and is not known can be named in the end.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rankloom.config.foreign.shell_words import MARK_CLOSE, MARK_OPEN, Piece, Word

__all__ = ["Field", "Scope", "is_mark", "mark", "unknowns", "without_marks"]

_MARK = re.compile(f"{MARK_OPEN}([^{MARK_CLOSE}]*){MARK_CLOSE}")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9])\}?|([A-Za-z_][A-Za-z0-9_]*)")


def mark(name: str) -> str:
    """A place in a text for something that is not known: a variable, "$1" or "$(nproc)"."""
    return f"{MARK_OPEN}{name}{MARK_CLOSE}"


def unknowns(text: str) -> tuple[str, ...]:
    """What is not known in a text, by name, each once."""
    return tuple(dict.fromkeys(_MARK.findall(text)))


def is_mark(text: str) -> bool:
    """Whether nothing of a text is known."""
    return _MARK.fullmatch(text) is not None


def without_marks(text: str) -> str:
    """The text as one would write it: marks become "$NAME" again."""
    return _MARK.sub(lambda m: m[1] if m[1].startswith(("$", "`")) else f"${m[1]}", text)


@dataclass(frozen=True)
class Field:
    """One argument: its text, the line it was written on, and every variable that had a part in it."""

    text: str
    line: int
    names: frozenset[str] = frozenset()


@dataclass
class Scope:
    """Variables: a scalar has one field, an array any number. ``known``: set from outside the script."""

    variables: dict[str, tuple[Field, ...]] = field(default_factory=dict)

    def copy(self) -> Scope:
        return Scope(dict(self.variables))

    def assign(self, word: Word) -> str:
        """Carries out ``NAME=value``, ``NAME+=value``, ``NAME=( ... )``; the name, or "" if it is none."""
        match = re.match(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", _leading_text(word))
        if not match:
            return ""
        name, adds = match[1], bool(match[2])
        before = self.variables.get(name, ()) if adds else ()
        if word.array is not None:
            self.variables[name] = (*before, *(f for w in word.array for f in self.fields(w)))
            return name
        value = self.joined(Word(_drop(word.pieces, match.end()), word.line, word.start, word.end))
        start = before[0] if before else Field("", value.line)
        names = start.names | value.names
        self.variables[name] = (Field(start.text + value.text, value.line, names), *before[1:])
        return name

    def joined(self, word: Word) -> Field:
        """The word as one text: how a shell expands the right side of an assignment."""
        text = ""
        names: set[str] = set()
        for piece in word.pieces:
            values = self._values(piece, word.line)
            text += " ".join(v.text for v in values)
            names.update(*(v.names for v in values))
        return Field(text, word.line, frozenset(names))

    def fields(self, word: Word) -> Iterator[Field]:
        """The arguments a word becomes: none, one, or several when an unquoted value has blanks."""
        parts: list[Field] = []  # of the argument being put together
        for piece in word.pieces:
            values = self._values(piece, word.line)
            if piece.kind == "variable" and not self._keeps_blanks(piece):
                split = [_split(v) for v in values]
                chunks = [chunk for part in split for chunk in part]
            else:
                chunks = [[v] for v in values]
            for i, chunk in enumerate(chunks):
                if i and parts:
                    yield _together(parts)
                    parts = []
                parts += chunk
        if parts:
            yield _together(parts)

    def _keeps_blanks(self, piece: Piece) -> bool:
        """Between quotes, or a default that is: ``${NAME:-"a b"}``."""
        stored = self.variables.get(piece.text)
        unset = stored is None or all(not f.text for f in stored)
        return piece.quoted or (unset and bool(piece.default) and all(p.quoted for p in piece.default))

    def _values(self, piece: Piece, line: int) -> tuple[Field, ...]:
        if piece.kind == "text":
            return (Field(piece.text, line),)
        if piece.kind == "unknown":
            return (Field(mark(piece.text), line),)
        if piece.kind == "arithmetic":
            return (self.arithmetic(piece.text, line),)
        return self._variable(piece, line)

    def _variable(self, piece: Piece, line: int) -> tuple[Field, ...]:
        name = piece.text
        stored = self.variables.get(name)
        empty = stored is not None and all(not f.text for f in stored)
        if piece.operator == "#":
            known = stored is not None and piece.index in ("@", "*")
            return (Field(str(len(stored or ())) if known else mark(f"${{#{name}}}"), line),)
        if piece.operator.endswith("+"):
            there = stored is not None and not (empty and piece.operator == ":+")
            return self._default(piece, line) if there else ()
        if stored is None or empty:
            if piece.operator in ((":-", ":=", "-", "=") if stored is None else (":-", ":=")):
                default = self._default(piece, line)
                value = Field(" ".join(f.text for f in default), line, frozenset({name}))
                if piece.operator.endswith("="):
                    self.variables[name] = (value,)
                return (value,)
            if stored is None:
                shown = name if name[0].isalpha() or name[0] == "_" else f"${name}"
                return (Field(mark(shown), line, frozenset({name})),)
        elements = _elements(stored or (), piece.index)
        if piece.index == "*" and piece.quoted:
            names = frozenset[str]().union(*(f.names for f in elements))
            elements = (Field(" ".join(f.text for f in elements), line, names),)
        return tuple(Field(f.text, f.line, f.names | {name}) for f in elements)

    def _default(self, piece: Piece, line: int) -> tuple[Field, ...]:
        return (self.joined(Word(piece.default, line, 0, 0)),)

    def arithmetic(self, expression: str, line: int = 0) -> Field:
        """``$((expression))``; a mark when a part of it is not known."""
        names: set[str] = set()
        missing: list[str] = []

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            names.add(name)
            stored = self.variables.get(name)
            if not stored:
                missing.append(name)
                return "0"
            names.update(stored[0].names)
            missing.extend(unknowns(stored[0].text))
            return f"({stored[0].text or 0})"

        text = _VARIABLE.sub(value, expression)
        if not missing:
            try:
                return Field(str(calculate(text)), line, frozenset(names))
            except (ValueError, SyntaxError, ZeroDivisionError):
                return Field(mark(f"$(({expression.strip()}))"), line, frozenset(names))
        return Field("".join(mark(m) for m in dict.fromkeys(missing)), line, frozenset(names))


def _leading_text(word: Word) -> str:
    text = ""
    for piece in word.pieces:
        if piece.kind != "text" or piece.quoted:
            break
        text += piece.text
    return text


def _drop(pieces: tuple[Piece, ...], count: int) -> tuple[Piece, ...]:
    """The pieces without the first ``count`` characters, which are unquoted text, a piece each."""
    return pieces[count:]


def _elements(stored: tuple[Field, ...], index: str) -> tuple[Field, ...]:
    if index in ("@", "*"):
        return stored
    place = int(index) if index.isdigit() else 0
    return stored[place : place + 1]


def _split(value: Field) -> list[list[Field]]:
    """The chunks between blanks; an empty chunk at an end stands for a blank there."""
    words = value.text.split()
    chunks = [[Field(w, value.line, value.names)] for w in words]
    if value.text[:1].isspace():
        chunks.insert(0, [])
    if value.text[-1:].isspace():
        chunks.append([])
    return chunks


def _together(parts: list[Field]) -> Field:
    names = frozenset[str]().union(*(p.names for p in parts))
    return Field("".join(p.text for p in parts), parts[0].line, names)


_OPERATIONS: Mapping[type[ast.AST], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: lambda a, b: int(a / b) if a * b < 0 else a // b,  # towards zero
        ast.Mod: lambda a, b: a - b * int(a / b),
        ast.LShift: operator.lshift,
        ast.RShift: operator.rshift,
    }
)
_COMPARISONS: Mapping[type[ast.AST], Callable[[int, int], bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)


def calculate(text: str) -> int:
    """The value of a shell's integer expression. Raises ValueError or SyntaxError for anything else."""
    return _calculated(ast.parse(text.replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body)


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _calculated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        compare = _COMPARISONS[type(node.ops[0])]
        return int(compare(_calculated(node.left), _calculated(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values: Iterable[int] = [_calculated(v) for v in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.IfExp):
        return _calculated(node.body if _calculated(node.test) else node.orelse)
    raise ValueError("not an integer expression")
