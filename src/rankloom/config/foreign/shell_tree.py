"""The words of a script as commands, branches, loops and functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankloom.config.foreign.shell_words import Operator, Piece, Word, cut

__all__ = ["Branch", "Case", "Clause", "Command", "Function", "Loop", "Node", "parse"]


@dataclass(frozen=True)
class Command:
    """One simple command, assignments in front of it included, and the operator after it: "&&", ";", ..."""

    line: int
    words: tuple[Word, ...]
    joint: str = ""


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
    """``for NAME in ...``; ``while`` and ``until`` have no name."""

    line: int
    name: str
    items: tuple[Word, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Function:
    name: str
    body: tuple[Node, ...]


Node = Command | Branch | Case | Loop | Function
_SEPARATORS = frozenset({"\n", ";", "&", "&&", "||", "|"})


def parse(text: str) -> tuple[Node, ...]:
    """The commands of a script in order. Anything that fits no rule is passed over."""
    parser = _Parser(text.replace("\r\n", "\n"), cut(text))
    nodes: list[Node] = []
    while parser.at < len(parser.tokens):
        nodes += parser.body(frozenset())
        parser.at += 1  # a closing word without its opening one
    return tuple(nodes)


@dataclass
class _Parser:
    text: str
    tokens: list[Word | Operator]
    at: int = field(default=0)

    def _peek(self) -> str:
        """The reserved word or operator at this place; "" of any other word."""
        if self.at >= len(self.tokens):
            return ""
        token = self.tokens[self.at]
        return token.text if isinstance(token, Operator) else token.plain

    def _more(self) -> bool:
        return self.at < len(self.tokens)

    def _skip(self, *texts: str) -> None:
        while self._more() and self._peek() in texts:
            self.at += 1

    def body(self, ends: frozenset[str]) -> tuple[Node, ...]:
        """Commands up to one of ``ends``, which is not consumed."""
        nodes: list[Node] = []
        while self._more():
            word = self._peek()
            if word in ends or (word in (")", "}", "fi", "done", "esac", ";;") and not ends):
                break
            if word in _SEPARATORS or word in ("(", ")", "{", "}", "!", "time", "then", "do"):
                self.at += 1
            elif word == "if":
                nodes.append(self._if())
            elif word == "case":
                nodes.append(self._case())
            elif word in ("for", "while", "until"):
                nodes.append(self._loop(word))
            else:
                nodes.append(self._command())
        return tuple(nodes)

    def _line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)].line

    def _if(self) -> Branch:
        line, clauses, word = self._line(), [], "if"
        while self._more() and word != "fi":
            self.at += 1
            start = self.at
            condition = () if word == "else" else self.body(frozenset({"then"}))
            text = "" if word == "else" else self._source(start, self.at)
            self._skip("then")
            clauses.append(Clause(condition, text, self.body(frozenset({"elif", "else", "fi"}))))
            word = self._peek()
        self.at += 1
        return Branch(line, tuple(clauses))

    def _source(self, start: int, end: int) -> str:
        """The script's text from one token to another, on one line."""
        until = self.tokens[end].start if end < len(self.tokens) else len(self.text)
        words = self.text[self.tokens[start].start : until] if start < len(self.tokens) else ""
        return " ".join(words.replace("\\\n", " ").split()).rstrip("; ")

    def _case(self) -> Case:
        line = self._line()
        self.at += 1
        subject = self.tokens[self.at] if self._more() else None
        self.at += 1
        self._skip("in", "\n")
        clauses = []
        while self._more() and self._peek() != "esac":
            patterns: list[str] = []
            while self._more() and self._peek() not in (")", "esac"):
                token = self.tokens[self.at]
                if isinstance(token, Word):
                    patterns.append("".join(p.text for p in token.pieces))
                self.at += 1
            self._skip(")")
            clauses.append(Clause((), "|".join(patterns), self.body(frozenset({";;", "esac"}))))
            self._skip(";;", "\n")
        self.at += 1
        assert isinstance(subject, Word | None)
        return Case(line, subject or Word((Piece("text", "", True),), line, 0, 0), tuple(clauses))

    def _loop(self, word: str) -> Loop:
        line, name = self._line(), ""
        items: list[Word] = []
        self.at += 1
        if word == "for":
            while self._more() and self._peek() not in ("do", "\n", ";"):
                token = self.tokens[self.at]
                if isinstance(token, Word):
                    items.append(token)
                self.at += 1
            name = items[0].plain if items else ""
            items = items[2:]
        else:
            self.body(frozenset({"do"}))
        self._skip("\n", ";", "do")
        body = self.body(frozenset({"done"}))
        self.at += 1
        return Loop(line, name, tuple(items), body)

    def _command(self) -> Node:
        line, words = self._line(), []
        in_test = False
        while self._more():
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if in_test and token.text != "\n":
                    words.append(
                        Word((Piece("text", token.text, False),), token.line, token.start, token.start)
                    )
                    self.at += 1
                    continue
                if token.text == "(" and len(words) == 1:
                    return self._function(words[0].plain)
                if token.text in _SEPARATORS or token.text in ("(", ")", ";;"):
                    break
                self.at += 1
                continue
            if words and words[0].plain == "function" and len(words) == 1:
                self.at += 1
                return self._function(token.plain)
            in_test = in_test or (not words and token.plain == "[[")
            words.append(token)
            in_test = in_test and token.plain != "]]"
            self.at += 1
        return Command(line, tuple(words), self._peek())

    def _function(self, name: str) -> Function:
        self._skip("(", ")", "\n")
        self._skip("{")
        body = self.body(frozenset({"}"}))
        self.at += 1
        return Function(name.removesuffix("()"), body)
