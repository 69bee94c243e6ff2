"""Shell text cut into words and operators, as far as people write launch scripts. Nothing is run.

A word is a sequence of pieces: literal text, ``$NAME`` in its forms, ``$((...))``, or something only a
running shell could know (``$(nproc)``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rankloom.config.foreign.shell_spans import MARK_CLOSE, MARK_OPEN, closing
from rankloom.errors import UserError

__all__ = ["Operator", "Piece", "Word", "cut", "pieces_of"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BRACE = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(\[[^\]]*\])?(.*)\Z", re.DOTALL)
_DEFAULTS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
# fmt: off
_OPERATORS = (
    "<<<", "<<-", "&>>", ";;", "&&", "||", "<<", ">>", "&>", ">&", "<&", ";", "&", "|", "<", ">", "(", ")",
)
# fmt: on
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")
_RUN = re.compile(rf"[^\s'\"\\$`;|&<>(){{}}{MARK_OPEN}]+")  # characters that stand for themselves
_BETWEEN = re.compile(r"(?:[ \t\r]+|\\\n|#[^\n]*)*")  # words: blanks, continued lines, comments
_QUOTED_RUN = re.compile(rf"[^\"\\$`{MARK_OPEN}]+")


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
    heredocs: list[tuple[str, bool]] = field(default_factory=list)  # end, whether tabs in front of it count
    counted: tuple[int, int] = (0, 1)  # a place, and its line
    looked: int = 0  # characters looked through for closing brackets

    def _line(self) -> int:
        at, line = self.counted
        self.counted = (self.at, line + self.text.count("\n", at, self.at))
        return self.counted[1]

    def _starts(self, *texts: str) -> str:
        return next((t for t in texts if self.text.startswith(t, self.at)), "")

    def _closing(self, at: int, close: str, *, quoted: bool = False) -> int:
        """``closing``, within bounds: brackets that are opened over and over would take forever."""
        end = closing(self.text, at, close, quoted=quoted)
        self.looked += end - at
        if self.looked > 20 * len(self.text) + 10_000:
            raise UserError("the script nests too many brackets to be read; name the training command itself")
        return end

    def tokens(self) -> Iterator[Word | Operator]:
        drop_next, in_test = False, False
        while True:
            token = self._token()
            if token is None:
                return
            if isinstance(token, Word):
                in_test = (in_test or token.plain == "[[") and token.plain != "]]"
                descriptor = token.plain.isdigit() and self._starts("<", ">")  # the 2 of 2>&1
                if not drop_next and (in_test or not descriptor):
                    yield token
                drop_next = False
                continue
            if in_test and token.text != "\n":
                yield token
            elif token.text in ("<<", "<<-"):
                self._heredoc(tabs=token.text == "<<-")
            elif "<" in token.text or token.text in (">", ">>", "&>", "&>>", ">&"):
                drop_next = True  # the file of a redirection
            else:
                drop_next = in_test = False
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
        if self._starts("((") and (arithmetic := self._arithmetic(line)):
            return arithmetic
        if self._starts("<(", ">("):  # a file that a command writes or reads
            self.at = self._closing(self.at + 2, ")") + 1
            return Word((Piece("unknown", self.text[start : self.at], True),), line, start, self.at)
        operator = self._starts(*_OPERATORS) if self.text[self.at] in ";&|<>()" else ""
        if operator:
            self.at += len(operator)
            return Operator(operator, line, start)
        return self._word(line)

    def _arithmetic(self, line: int) -> Word | None:
        """``(( ... ))``; None where it is a subshell in a subshell."""
        start, end = self.at, self._closing(self.at + 2, ")")
        if not self.text.startswith("))", end):
            return None
        self.at = end + 2
        piece = Piece("arithmetic", self.text[start + 2 : end], quoted=True)
        return Word((Piece("text", "((", False), piece), line, start, self.at)

    def _skip_blanks(self) -> None:
        match = _BETWEEN.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _heredoc(self, *, tabs: bool) -> None:
        self._skip_blanks()
        word = self._word(0)
        if word.pieces:
            self.heredocs.append(("".join(p.text for p in word.pieces), tabs))

    def _skip_heredocs(self) -> None:
        for end, tabs in self.heredocs:
            lines = re.compile(rf"^{chr(9) + '*' if tabs else ''}{re.escape(end)}$", re.MULTILINE)
            match = lines.search(self.text, self.at)
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
        if run := (_QUOTED_RUN if quoted else _RUN).match(self.text, self.at):
            yield Piece("text", run[0], quoted)
            self.at = run.end()
        elif not quoted and self._starts("$'"):
            self.at += 1
            text = self._until("'")
            yield Piece("unknown" if "\\" in text else "text", f"$'{text}'" if "\\" in text else text, True)
        elif not quoted and self._starts('$"'):
            self.at += 1
            yield from self._double_quoted()
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
            end = self._closing(start + 3, ")")
            if self.text.startswith("))", end):
                self.at = end + 2
                return Piece("arithmetic", self.text[start + 3 : end], quoted)
        if self._starts("$("):
            self.at = self._closing(start + 2, ")") + 1
            return Piece("unknown", self.text[start : self.at], quoted)
        if self._starts("${"):
            end = self._closing(start + 2, "}", quoted=quoted)
            self.at = end + 1
            return _braced(self.text[start + 2 : end], quoted=quoted)
        match = _NAME.match(self.text, self.at + 1)
        if not match:
            self.at += 1
            return Piece("text", "$", quoted)
        self.at = match.end()
        return Piece("variable", match[0], quoted)


def _braced(inner: str, *, quoted: bool) -> Piece:
    match = _BRACE.match(inner)
    if not match or (quoted and inner.count("'") % 2):
        return Piece("unknown", f"${{{inner}}}", quoted)
    count, name, index, rest = match[1], match[2], (match[3] or "")[1:-1], match[4]
    operator = next((o for o in _DEFAULTS if rest.startswith(o)), "")
    if rest and (count or not operator):  # ${NAME%/*} and its like
        return Piece("unknown", f"${{{inner}}}", quoted)
    if count:
        return Piece("variable", name, quoted, operator="#", index=index)
    default = pieces_of(rest[len(operator) :], quoted=quoted)
    return Piece("variable", name, quoted, operator, default, index)


def pieces_of(text: str, *, quoted: bool) -> tuple[Piece, ...]:
    """The pieces of a text inside a word: a default of a variable, an expression."""
    cutter, pieces = _Cutter(text), list[Piece]()
    while cutter.at < len(text):
        if quoted and text[cutter.at] == '"':
            pieces += cutter._double_quoted()
        else:
            pieces += cutter._pieces(quoted=quoted)
    return tuple(pieces)
