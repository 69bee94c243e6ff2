"""The library itself: whether it is there, and quiet."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from rankloom.errors import UserError

__all__ = ["ENERGON", "energon_version", "hushed", "reason_of", "require_energon"]

ENERGON = "megatron-energon"
SOURCE = re.compile(r"index=(?P<index>\d+), shard_name='(?P<shard>[^']*)'")
IN_A_ROW = re.compile(r"failed (\d+) times in a row")
# Energon keeps in a module whose samples it is working on, and standard output is one for all threads too.
_ONE_THREAD = threading.RLock()


def energon_version() -> str | None:
    """Of the installed Energon; None where there is none."""
    try:
        return version(ENERGON)
    except PackageNotFoundError:
        return None


def require_energon() -> str:
    """The version of Energon. Raises UserError naming the extra that brings it, if it is not installed."""
    found = energon_version()
    if found is None:
        raise UserError(
            f'data.source energon needs {ENERGON}; install it with: pip install "rankloom[energon]"'
        )
    return found


def reason_of(error: Exception) -> str:
    """What went wrong, in a line. Energon puts some errors into one of its own, with all of the sample."""
    if type(error).__name__ != "FatalSampleError" or error.__context__ is None:
        return f"{type(error).__name__}: {_line(error)}"
    text, cause = str(error), error.__context__
    place, row = SOURCE.search(text), IN_A_ROW.search(text)
    where = f"{place['shard']}, sample {place['index']}: " if place else ""
    many = f" ({row[1]} samples in a row could not be read)" if row else ""
    return f"{where}{type(cause).__name__}: {_line(cause)}{many}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or "no reason given"


class _Muffled(io.TextIOBase):
    """A stream without what one thread writes to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


@contextmanager
def hushed() -> Iterator[None]:
    """Where Energon is called: by one thread at a time, without a word.

    It prints how it cuts the data, progress bars, and every error before it raises it: nothing of that is
    seen inside this. What other threads print is; what is raised here is raised.
    """
    with _ONE_THREAD:
        # Both may be missing, in a program without a terminal.
        out, err = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))
        with redirect_stdout(_Muffled(out)), redirect_stderr(_Muffled(err)):
            yield
