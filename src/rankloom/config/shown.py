"""A value as a message shows it: words as YAML has them, and no more than a line of it."""

from __future__ import annotations

from reprlib import Repr

__all__ = ["shown"]

_WORDS: dict[object, str] = {True: "true", False: "false", None: "null"}


def shown(value: object) -> str:
    """The value for a message.

    >>> shown(True), shown("x" * 200), shown([1] * 100)
    ('true', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxxx'", '[1, 1, 1, 1, 1, 1, ...]')
    """
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    short = Repr()
    short.maxlong = short.maxstring = short.maxother = 62
    return short.repr(value)
