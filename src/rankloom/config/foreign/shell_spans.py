"""Where a quote, a bracket or a substitution of a script ends, whatever stands inside it."""

from __future__ import annotations

import re

__all__ = ["BLANKS", "MARK_CLOSE", "MARK_OPEN", "closing"]

# Around the name of something that is not known, in a text that is read again: no character people type.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"

BLANKS = " \t\r\n"
_PLAIN = re.compile(r"[A-Za-z0-9_ \t,./=:+*%-]+")
_HEREDOC = re.compile(r"<<(-?)[ \t]*\\?[\"']?(\w+)")
_KEYWORD = re.compile(r"(case|esac)(?![\w-])")


def closing(text: str, at: int, close: str, *, quoted: bool = False) -> int:
    """The place of the bracket ``close`` that ends what begins at ``at``; the text's length if none does.

    ``close`` is ")" of ``$( )``, "}" of ``${ }`` or the quote '"'; ``quoted``: all of it stands in one.
    """
    open_ = [(close, quoted)]
    heredocs: list[str] = []  # their ends, as patterns
    cases: list[int] = []  # depths at which a case stands: the ) of its patterns closes nothing
    while at < len(text):
        close, quoted = open_[-1]
        if match := (_PLAIN if close != ")" else _KEYWORD).match(text, at):
            at = match.end()
            if match[0] == "case" and _begins_command(text, match.start()):
                cases.append(len(open_))
            elif match[0] == "esac" and cases:
                cases.pop()
            continue
        char, two = text[at], text[at : at + 2]
        if char == "\\":
            at += 1
        elif two in ("$(", "${"):
            open_.append((")", False) if two == "$(" else ("}", quoted or close == '"'))
            at += 1
        elif close == ")" and (heredoc := _HEREDOC.match(text, at)):
            heredocs.append(rf"^{chr(9) + '*' if heredoc[1] else ''}{heredoc[2]}$")
            at = heredoc.end() - 1
        elif char == "\n" and heredocs:
            body = re.compile(heredocs.pop(0), re.MULTILINE).search(text, at)
            at = body.end() - 1 if body else at
        elif char == close:
            if close != ")" or not cases or cases[-1] != len(open_):
                open_.pop()
                if not open_:
                    return at
        elif char in ("`", MARK_OPEN):
            at = _after(text, at, "`" if char == "`" else MARK_CLOSE)
        elif char == '"':
            open_.append(('"', True))
        elif char == "'" and close != '"' and not quoted:
            at = _after(text, at, "'")
        elif close == ")" and char == "(":
            open_.append((")", False))
        elif close == ")" and char == "#" and text[at - 1] in BLANKS:
            at = _after(text, at, "\n")
        at += 1
    return len(text)


def _begins_command(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] in BLANKS + ";(|&"


def _after(text: str, at: int, close: str) -> int:
    """The place of the next ``close`` after ``at``."""
    end = text.find(close, at + 1)
    return len(text) if end < 0 else end
