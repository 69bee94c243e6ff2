"""stderr and stdout of a run, which may fail (a closed pipe, a full disk) without harm to the training."""

from __future__ import annotations

import contextlib
import os
from typing import IO

__all__ = ["LossyStream", "say", "silence"]


class LossyStream:
    """What rich needs of a stream. Once writing has failed, nothing is written any more; nothing raises."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._give_up()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._give_up()

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("there is no stream any more")
        return self._stream.fileno()

    def _give_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            silence(stream)


def say(text: str, stream: IO[str] | None) -> None:
    """Print a line, if it can be printed."""
    out = LossyStream(stream)
    out.write(f"{text}\n")
    out.flush()


def silence(stream: IO[str]) -> None:
    """Send what the stream still holds, and all that comes, to nowhere: Python flushes it when it ends, and
    would turn the exit code into 120."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # a stream without a descriptor, or closed: it holds nothing
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
