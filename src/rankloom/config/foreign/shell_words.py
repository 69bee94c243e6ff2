"""Shell text cut into words and operators, as far as people write launch scripts. Nothing is run.

A word is a sequence of pieces: literal text, ``$NAME`` in its forms, ``$((...))``, or something only a
running shell could know (``$(nproc)``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MARK_CLOSE", "MARK_OPEN", "Operator", "Piece", "Word", "cut"]

# Around the name of something that is not known, in a text that is read again: no character people type.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BRACE = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(\[[^\]]*\])?(.*)\Z", re.DOTALL)
_DEFAULTS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_OPERATORS = ("<<<", "<<-", "&>>", ";;", "&&", "||", "<<", ">>", "&>", ">&", "<&", ";", "&", "|", "<", ">")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")


@dataclass(frozen=True)
class Piece:
    """A part of a word. ``text``: the literal, the variable's name, the expression, or the source text."""

    kind: Literal["text", "variable", "arithmetic", "unknown"]
    text: str
    quoted: bool
    operator: str = ""  # of ${NAME:-default} and its relatives; "#" counts
    default: tuple[Piece, ...] = ()
    index: str = ""  # of ${NAME[@]} and ${NAME[0]}


@dataclass(frozen=True)
class Word:
    """One word and the line it begins on. ``array``: the words of ``NAME=( ... )``, pieces hold NAME=."""

    pieces: tuple[Piece, ...]
    line: int
    start: int
    end: int
    array: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str:
        """The text of a word that stands there unquoted and as it is; "" of any other."""
        if self.array is None and all(p.kind == "text" and not p.quoted for p in self.pieces):
            return "".join(p.text for p in self.pieces)
        return ""


@dataclass(frozen=True)
class Operator:
    """``;``, a newline, ``&&``, ``(``, ..., and where it stands."""

    text: str
    line: int
    start: int


def cut(text: str) -> list[Word | Operator]:
    """The words and operators of a script. An open quote or bracket ends with the text."""
    return list(_Cutter(text.replace("\r\n", "\n")).tokens())


@dataclass
class _Cutter:
    text: str
    at: int = 0
    heredocs: list[str] = field(default_factory=list)

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _starts(self, *texts: str) -> str:
        return next((t for t in texts if self.text.startswith(t, self.at)), "")

    def tokens(self) -> Iterator[Word | Operator]:
        drop_next = False
        while True:
            token = self._token()
            if token is None:
                return
            if isinstance(token, Word):
                descriptor = token.plain.isdigit() and self._starts("<", ">")  # the 2 of 2>&1
                if not drop_next and not descriptor:
                    yield token
                drop_next = False
                continue
            if token.text in ("<<", "<<-"):
                self._heredoc()
            elif "<" in token.text or token.text in (">", ">>", "&>", "&>>", ">&"):
                drop_next = True  # the file of a redirection
            else:
                drop_next = False
                yield token

    def _token(self) -> Word | Operator | None:
        self._skip_blanks()
        if self.at >= len(self.text):
            return None
        line, start = self._line(), self.at
        if self.text[self.at] == "\n":
            self.at += 1
            self._skip_heredocs()
            return Operator("\n", line, start)
        if self._starts("(("):
            end = self.text.find("))", self.at)
            end = len(self.text) if end < 0 else end
            inner, self.at = self.text[self.at + 2 : end], end + 2
            piece = Piece("arithmetic", inner, quoted=True)
            return Word((Piece("text", "((", False), piece), line, start, self.at)
        operator = self._starts(*_OPERATORS, "(", ")")
        if operator:
            self.at += len(operator)
            return Operator(operator, line, start)
        return self._word(line)

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self._starts("\\\n"):
                self.at += 2
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _heredoc(self) -> None:
        self._skip_blanks()
        match = re.compile(r"['\"]?([A-Za-z0-9_]+)['\"]?").match(self.text, self.at)
        if match:
            self.at = match.end()
            self.heredocs.append(match[1])

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            match = re.compile(rf"^[ \t]*{end}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            self.at = match.end() if match else len(self.text)
        self.heredocs.clear()

    def _word(self, line: int) -> Word:
        start = self.at
        pieces: list[Piece] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self._starts("\\\n"):
                self.at += 2
            elif char in " \t\r\n;|&<>)":
                break
            elif char == "(":
                so_far = "".join(p.text for p in pieces)
                if _ARRAY.match(so_far):
                    self.at += 1
                    return Word(tuple(pieces), line, start, self.at, self._array())
                break
            else:
                pieces.extend(self._pieces(quoted=False))
        return Word(tuple(pieces), line, start, self.at)

    def _array(self) -> tuple[Word, ...]:
        words: list[Word] = []
        while True:
            token = self._token()
            if token is None or (isinstance(token, Operator) and token.text == ")"):
                return tuple(words)
            if isinstance(token, Word):
                words.append(token)

    def _pieces(self, *, quoted: bool) -> Iterator[Piece]:
        """The piece at this place; between double quotes, several."""
        char = self.text[self.at]
        if char == "$" and self._starts("$'"):
            self.at += 1
            yield from self._pieces(quoted=quoted)
        elif char == "'" and not quoted:
            yield Piece("text", self._until("'"), quoted=True)
        elif char == '"' and not quoted:
            yield from self._double_quoted()
        elif char == MARK_OPEN:
            yield Piece("text", f"{char}{self._until(MARK_CLOSE)}{MARK_CLOSE}", quoted=True)
        elif char == "\\":
            yield Piece("text", self.text[self.at + 1 : self.at + 2], quoted=True)
            self.at += 2
        elif char == "`":
            yield Piece("unknown", f"`{self._until('`')}`", quoted)
        elif char == "$":
            yield self._dollar(quoted=quoted)
        else:
            yield Piece("text", char, quoted)
            self.at += 1

    def _until(self, close: str) -> str:
        end = self.text.find(close, self.at + 1)
        end = len(self.text) if end < 0 else end
        inner, self.at = self.text[self.at + 1 : end], end + 1
        return inner

    def _double_quoted(self) -> Iterator[Piece]:
        self.at += 1
        yield Piece("text", "", quoted=True)
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self._starts("\\\n"):
                self.at += 2
            elif self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] not in tuple('$"\\`'):
                yield Piece("text", "\\", quoted=True)
                self.at += 1
            else:
                yield from self._pieces(quoted=True)
        self.at += 1

    def _dollar(self, *, quoted: bool) -> Piece:
        start = self.at
        if self._starts("$(("):
            inner = self._balanced(3, "(", ")")
            self.at += 1
            return Piece("arithmetic", inner, quoted)
        if self._starts("$("):
            self._balanced(2, "(", ")")
            return Piece("unknown", self.text[start : self.at], quoted)
        if self._starts("${"):
            return _braced(self._balanced(2, "{", "}"), quoted=quoted)
        match = _NAME.match(self.text, self.at + 1)
        if not match:
            self.at += 1
            return Piece("text", "$", quoted)
        self.at = match.end()
        return Piece("variable", match[0], quoted)

    def _balanced(self, skip: int, opening: str, closing: str) -> str:
        """The text up to the bracket that closes the one just before; ``skip``: characters of the opening."""
        self.at += skip
        start, depth = self.at, 1
        while self.at < len(self.text):
            depth += {opening: 1, closing: -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                break
        return self.text[start : self.at - 1]


def _braced(inner: str, *, quoted: bool) -> Piece:
    match = _BRACE.match(inner)
    if not match:
        return Piece("unknown", f"${{{inner}}}", quoted)
    count, name, index, rest = match[1], match[2], (match[3] or "")[1:-1], match[4]
    if count:
        return Piece("variable", name, quoted, operator="#", index=index)
    operator = next((o for o in _DEFAULTS if rest.startswith(o)), "")
    if rest and not operator:  # ${NAME%/*} and its like
        return Piece("unknown", f"${{{inner}}}", quoted)
    default = tuple(_word_pieces(rest[len(operator) :], quoted=quoted))
    return Piece("variable", name, quoted, operator, default, index)


def _word_pieces(text: str, *, quoted: bool) -> Iterator[Piece]:
    cutter = _Cutter(text)
    while cutter.at < len(text):
        if quoted and text[cutter.at] == '"':
            yield from cutter._double_quoted()
        else:
            yield from cutter._pieces(quoted=quoted)
