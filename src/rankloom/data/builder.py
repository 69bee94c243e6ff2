"""The program of a loader process: reads a builder, then orders, and writes what it built."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO

from rankloom.data.messages import receive, send
from rankloom.errors import RankloomError

__all__ = ["main", "serve"]


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Until there are no more orders (EOFError)."""
    build = receive(orders)
    while True:
        rounds = receive(orders)
        try:
            found: object = build(rounds)
        except RankloomError as error:
            found = error
        send(answers, found)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this decides when it ends
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints is no answer
    try:
        serve(sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main()
