"""The token of a Ray cluster that we start: made for it alone, kept where only this user can read it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["private_token"]

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@contextmanager
def private_token(folder: Path) -> Iterator[bool]:
    """Have Ray processes that start inside share a new token in ``folder``; gives whether they ask for one.

    A token that the user has set is used instead, and so is their wish to have none (``RAY_AUTH_MODE``).
    Afterwards the environment is as before, and Ray does not remember the token.
    """
    before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _TOKEN_PATH)}
    asks = (before[_MODE] or "token").lower() == "token"
    try:
        if asks and before[_TOKEN] is None and before[_TOKEN_PATH] is None:
            os.environ[_TOKEN_PATH] = str(_written(folder / "token"))
        _enable(asks)
        yield asks
    finally:
        for name, value in before.items():
            _set(name, value)
        _forget()


def _written(file: Path) -> Path:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(secrets.token_hex(32))
    return file


def _enable(asks: bool) -> None:
    """Ray reads its environment once, when it is imported, and its token once, when it needs it first."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    os.environ[_MODE] = "token" if asks else "disabled"
    Config.initialize("")
    _forget()


def _forget() -> None:
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
