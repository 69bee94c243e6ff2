"""The words of a script as commands, branches, loops and functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankloom.config.foreign.shell_nodes import (
    AndOr,
    Branch,
    Case,
    Clause,
    Command,
    Function,
    Group,
    Loop,
    Node,
    Part,
)
from rankloom.config.foreign.shell_spans import MARK_CLOSE, MARK_OPEN
from rankloom.config.foreign.shell_words import Operator, Piece, Word, cut

__all__ = ["parse"]


_SEPARATORS = frozenset({"\n", ";", "&", "&&", "||", "|"})


def parse(text: str) -> tuple[Node, ...]:
    """The commands of a script in order. Anything that fits no rule is passed over."""
    parser = _Parser(text.replace("\r\n", "\n"), cut(text))
    nodes: list[Node] = []
    while parser.at < len(parser.tokens):
        nodes += parser.body(frozenset())
        parser.at += 1  # a closing word without its opening one
    return tuple(nodes)


def _pattern(piece: Piece) -> str:
    """A part of a pattern of ``case``; what is not literal text is not known."""
    return piece.text if piece.kind == "text" else f"{MARK_OPEN}${{{piece.text}}}{MARK_CLOSE}"


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
            start = self.at
            if word not in _SEPARATORS and word not in (")", "}", "then", "do"):
                nodes += [node] if (node := self._list()) is not None else []
            self.at += self.at == start  # what fits nowhere is passed over
        return tuple(nodes)

    def _list(self) -> Node | None:
        """Pipes joined by && and ||."""
        line, joint = self._line(), ""
        parts: list[Part] = []
        while self._more():
            start = self.at
            node = self._pipe()
            if node is not None:
                parts.append(Part(joint, self._source(start, self.at), node))
            joint = self._peek()
            if joint not in ("&&", "||"):
                break
            self.at += 1
            self._skip("\n")
        if len(parts) == 1:
            return parts[0].node
        return AndOr(line, tuple(parts)) if parts else None

    def _pipe(self) -> Node | None:
        """Commands joined by |, each in a shell of its own."""
        line, negated = self._line(), False
        nodes: list[Node] = []
        while self._more():
            while self._peek() in ("!", "time"):
                negated ^= self._peek() == "!"
                self.at += 1
            nodes += [node] if (node := self._one()) is not None else []
            if self._peek() != "|":
                break
            self.at += 1
            self._skip("\n", "&")
        if len(nodes) > 1:
            return Group(line, tuple(Group(line, (node,), True) for node in nodes), True)
        if negated and nodes:
            (node,) = nodes
            return replace(node, negated=True) if isinstance(node, Command) else Group(line, (node,), False)
        return nodes[0] if nodes else None

    def _one(self) -> Node | None:
        word, line = self._peek(), self._line()
        if word in ("(", "{"):
            self.at += 1
            body = self.body(frozenset({")" if word == "(" else "}"}))
            self.at += 1
            return Group(line, body, word == "(")
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in ("for", "while", "until", "select"):
            return self._loop(word)
        return self._command()

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
                    patterns.append("".join(map(_pattern, token.pieces)))
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
        condition: tuple[Node, ...] = ()
        self.at += 1
        if word in ("for", "select"):
            while self._more() and self._peek() not in ("do", "{", "\n", ";"):
                token = self.tokens[self.at]
                if isinstance(token, Word):
                    items.append(token)
                self.at += 1
            name = items[0].plain if items else ""
            if items and not name:  # for (( ))
                condition = (Command(line, tuple(items)),)
            items = items[2:]
        else:
            condition = self.body(frozenset({"do"}))
        self._skip("\n", ";")
        closing = "}" if self._peek() == "{" else "done"
        self._skip("do", "{")
        body = self.body(frozenset({closing}))
        self.at += 1
        return Loop(line, word, name, tuple(items), condition, body)

    def _command(self) -> Node | None:
        line, words = self._line(), list[Word]()
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
                break
            if words and words[0].plain == "function" and len(words) == 1:
                self.at += 1
                return self._function(token.plain)
            in_test = in_test or (not words and token.plain == "[[")
            words.append(token)
            in_test = in_test and token.plain != "]]"
            self.at += 1
        return Command(line, tuple(words)) if words else None

    def _function(self, name: str) -> Function:
        for bracket in ("(", ")"):
            self.at += self._peek() == bracket
        self._skip("\n")
        body = self._one()
        nodes = body.body if isinstance(body, Group) and not body.apart else (body,) if body else ()
        return Function(name.removesuffix("()"), nodes)
