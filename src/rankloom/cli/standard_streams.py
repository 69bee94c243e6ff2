"""stdin, stdout and stderr of a command that was started with some of them closed."""

from __future__ import annotations

import os
import sys

__all__ = ["open_standard_streams"]


def open_standard_streams() -> None:
    """Open those that are closed (``>&-``) to /dev/null; else a file or a socket would get the number, and
    what a library prints would go into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
