"""The values of a script's variables, and words with the variables filled in.

What only a running shell could know stays in a text as a mark that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rankloom.config.foreign.shell_arithmetic import assigned_in, calculate
from rankloom.config.foreign.shell_marks import MARK, is_mark, mark, split_blanks, unknowns, without_marks
from rankloom.config.foreign.shell_words import Piece, Word, pieces_of
from rankloom.errors import UserError

__all__ = ["Field", "Scope", "is_assignment"]

_BARE = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")  # {1,2} and {1..8}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^]]*\])?(\+?)=")
_LONGEST = 30_000  # characters of a value, or elements of an array; what is longer is not known
_MOST_WORK = 5_000_000  # characters that are filled in altogether


@dataclass(frozen=True)
class Field:
    """One argument: its text, the line it was written on, and every variable that had a part in it."""

    text: str
    line: int
    names: frozenset[str] = frozenset()


@dataclass
class Scope:
    """Variables: a scalar has one field, an array any number. ``work``: what filling in cost so far."""

    variables: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    integers: set[str] = field(default_factory=set)  # of declare -i
    work: list[int] = field(default_factory=lambda: [0])

    def copy(self) -> Scope:
        self.spend(len(self.variables))
        return replace(self, variables=dict(self.variables), integers=set(self.integers))

    def spend(self, amount: int) -> None:
        """Raises UserError when following the script comes to too much: it may double with every line."""
        self.work[0] += amount
        if self.work[0] > _MOST_WORK:
            raise UserError("the script is too large to be followed; name the training command itself")

    def forget(self, names: Iterable[str], why: str, line: int) -> None:
        """Makes variables unknown; ``why`` names what would be computed: "$(read TP)"."""
        for name in names:
            self.variables[name] = (Field(mark(why), line, frozenset({name})),)

    def restore(self, values: Mapping[str, tuple[Field, ...] | None]) -> None:
        """Gives variables back the values they had; None: it was not set."""
        for name, value in values.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def assign(self, word: Word) -> str:
        """Carries out ``NAME=value``, ``NAME+=value``, ``NAME=( ... )``; the name, or "" if it is none."""
        match = _ASSIGNMENT.match(_leading_text(word))
        if not match:
            return ""
        name, adds = match[1], bool(match[3])
        before = self.variables.get(name, ()) if adds else ()
        if match[2] or any(_sets_element(w) for w in word.array or ()):
            self.forget([name], f"${{{name}[@]}}", word.line)
            return name
        if word.array is not None:
            fields = (*before, *(f for w in word.array for f in self.fields(w)))
            if sum(len(f.text) + 1 for f in fields) > _LONGEST:
                fields = (Field(mark(f"${{{name}[@]}}"), word.line, frozenset({name})),)
            self.variables[name] = fields
            return name
        value = self.joined(Word(_drop(word.pieces, match.end()), word.line, word.start, word.end))
        start = before[0] if before else Field("", value.line)
        names = start.names | value.names
        text = start.text + value.text
        if name in self.integers:
            total = f"({start.text or 0})+({value.text or 0})" if adds else value.text or "0"
            text = self.arithmetic(total, word.line).text
        elif len(text) > _LONGEST:
            text = mark(f"${{{name}}}")
        self.spend(len(text) + len(names))
        self.variables[name] = (Field(text, value.line, names), *before[1:])
        return name

    def joined(self, word: Word) -> Field:
        """The word as one text: how a shell expands the right side of an assignment."""
        texts: list[str] = []
        names: set[str] = set()
        for piece in word.pieces:
            values = self._values(piece, word.line)
            texts.append(" ".join(v.text for v in values))
            self.spend(len(texts[-1]))
            names.update(*(v.names for v in values))
        return Field("".join(texts), word.line, frozenset(names))

    def fields(self, word: Word) -> Iterator[Field]:
        """The arguments a word becomes: none, one, or several when an unquoted value has blanks."""
        if _BRACES.search("".join(p.text for p in word.pieces if p.kind == "text" and not p.quoted)):
            text = "".join(p.text for p in word.pieces)
            yield Field(mark(f"${{{text}}}"), word.line)
            return
        parts: list[Field] = []  # of the argument being put together
        for piece in word.pieces:
            values = self._values(piece, word.line)
            self.spend(sum(len(v.text) + len(v.names) for v in values))
            if piece.kind == "variable" and not self._keeps_blanks(piece):
                if "IFS" in self.variables:  # other blanks
                    values = tuple(Field(mark(f"${{{piece.text}}}"), v.line, v.names) for v in values)
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
            return (Field(self._length(piece, line), line, frozenset({name})),)
        if piece.operator.endswith("+"):
            there = stored is not None and not (empty and piece.operator == ":+")
            return self._default(piece, line) if there else ()
        if stored is None or empty:
            if piece.operator in ((":-", ":=", "-", "=") if stored is None else (":-", ":=")):
                default = self._default(piece, line)
                names = frozenset({name}).union(*(f.names for f in default))
                value = Field(" ".join(f.text for f in default), line, names)
                if piece.operator.endswith("="):
                    self.variables[name] = (value,)
                return (value,)
            if stored is None:
                shown = name if name[0].isalpha() or name[0] == "_" else f"${name}"
                return (Field(mark(shown), line, frozenset({name})),)
        elements = self._elements(name, piece.index, line)
        if piece.index == "*" and piece.quoted:
            names = frozenset[str]().union(*(f.names for f in elements))
            elements = (Field(" ".join(f.text for f in elements), line, names),)
        return tuple(Field(f.text, f.line, f.names | {name}) for f in elements)

    def _default(self, piece: Piece, line: int) -> tuple[Field, ...]:
        return (self.joined(Word(piece.default, line, 0, 0)),)

    def _length(self, piece: Piece, line: int) -> str:
        """Of ``${#NAME}`` and ``${#NAME[@]}``."""
        values = self._values(replace(piece, operator=""), line)
        if any(unknowns(v.text) for v in values) or piece.text not in self.variables:
            return mark(f"${{#{piece.text}{f'[{piece.index}]' * bool(piece.index)}}}")
        return str(len(values) if piece.index in ("@", "*") else sum(len(v.text) for v in values))

    def _elements(self, name: str, index: str, line: int) -> tuple[Field, ...]:
        stored, index = self.variables.get(name, ()), name if name in ("@", "*") else index
        if index in ("@", "*") or (len(stored) == 1 and is_mark(stored[0].text)):
            return stored
        place = self.arithmetic(index, line).text if index else "0"
        if not re.fullmatch(r"-?\d+", place):
            return (Field(mark(f"${{{name}[{index}]}}"), line, frozenset({name})),)
        return tuple(stored[i] for i in [int(place)] if -len(stored) <= i < len(stored))

    def arithmetic(self, expression: str, line: int = 0) -> Field:
        """``$((expression))``; a mark when a part is not known. What it sets is not known afterwards."""
        shown = f"$(({without_marks(expression).strip()}))"
        if names := assigned_in(MARK.sub("0", expression)):
            self.forget(names, shown, line)
            return Field(mark(shown), line, names)
        expanded = self.joined(Word(pieces_of(expression, quoted=True), line, 0, 0))
        missing, used = list(unknowns(expanded.text)), set(expanded.names)

        def value(match: re.Match[str]) -> str:
            name = match[0]
            used.add(name)
            stored = self.variables.get(name)
            if not stored:
                missing.append(name)
                return "0"
            used.update(stored[0].names)
            missing.extend(unknowns(stored[0].text))
            return f"({stored[0].text or 0})"

        text = MARK.sub("0", expanded.text)
        if "#" in text:  # a base
            return Field(mark(shown), line, expanded.names)
        text = _BARE.sub(value, text)
        if missing:
            return Field("".join(map(mark, dict.fromkeys(missing))), line, frozenset(used))
        try:
            return Field(str(calculate(text)), line, frozenset(used))
        except ValueError:
            return Field(mark(shown), line, frozenset(used))


def _sets_element(word: Word) -> bool:
    """``[2]=x`` inside ``NAME=( ... )``."""
    return _leading_text(word).startswith("[") and "]=" in _leading_text(word)


def is_assignment(word: Word) -> bool:
    """``NAME=...``, ``NAME+=...`` or ``NAME[...]=...``."""
    return _ASSIGNMENT.match(_leading_text(word)) is not None


def _leading_text(word: Word) -> str:
    text = ""
    for piece in word.pieces:
        if piece.kind != "text" or piece.quoted:
            break
        text += piece.text
    return text


def _drop(pieces: tuple[Piece, ...], count: int) -> tuple[Piece, ...]:
    """The pieces without the first ``count`` characters, which are unquoted text."""
    for i, piece in enumerate(pieces):
        if count < len(piece.text):
            return (replace(piece, text=piece.text[count:]), *pieces[i + 1 :]) if count else pieces[i:]
        count -= len(piece.text)
    return ()


def _split(value: Field) -> list[list[Field]]:
    """The chunks between blanks; an empty chunk at an end stands for a blank there."""
    chunks = [[Field(w, value.line, value.names)] for w in split_blanks(value.text)]
    if value.text[:1] in (" ", "\t", "\n"):
        chunks.insert(0, [])
    if value.text[-1:] in (" ", "\t", "\n"):
        chunks.append([])
    return chunks


def _together(parts: list[Field]) -> Field:
    names = frozenset[str]().union(*(p.names for p in parts))
    return Field("".join(p.text for p in parts), parts[0].line, names)
