"""One rank of the test pool: runs bodies one after the other, each inside a process group of its own."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Case", "Outcome", "serve"]


@dataclass(frozen=True)
class Case:
    """One test body for one rank. ``call`` is the pickled (function, arguments): it may fail to load."""

    call: bytes
    sys_path: tuple[str, ...]
    rank: int
    world_size: int
    store_file: str
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """What came back from a rank: a result, or the exception with its traceback as text."""

    result: Any = None
    error_type: str = ""
    error: str = ""
    traceback: str = ""


def serve(connection: Connection, log_file: str, stack_file: str) -> None:
    """Run the cases that arrive until the pool closes its end of the pipe."""
    import torch

    _redirect_output(log_file)
    stacks = Path(stack_file).open("w")  # noqa: SIM115  (open as long as the process lives)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides when a rank ends
    torch.set_num_threads(1)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        outcome = _run(case)
        connection.send_bytes(_pickled(outcome))
        _leave_process_group(together=not outcome.error_type)


def _redirect_output(log_file: str) -> None:
    target = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _run(case: Case) -> Outcome:
    try:
        return Outcome(result=_in_process_group(case))
    except BaseException as error:  # SystemExit and torch's BaseExceptions are outcomes of a test body too
        return Outcome(
            error_type=type(error).__name__,
            error=str(error),
            traceback="".join(traceback.format_exception(error)),
        )


def _in_process_group(case: Case) -> Any:
    import torch
    import torch.distributed as dist

    _extend_sys_path(case.sys_path)
    body, arguments = pickle.loads(case.call)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{case.store_file}",
        rank=case.rank,
        world_size=case.world_size,
        timeout=timedelta(seconds=case.timeout_s),
    )
    torch.manual_seed(0)
    return body(case.rank, case.world_size, *arguments)


def _leave_process_group(*, together: bool) -> None:
    """Together: a rank that closes its connections while others still make theirs would make them fail."""
    import torch.distributed as dist

    if not dist.is_initialized():  # a body may have destroyed the group itself
        return
    if together:
        dist.barrier()
    dist.destroy_process_group()


def _extend_sys_path(entries: tuple[str, ...]) -> None:
    missing = [entry for entry in entries if entry not in sys.path]
    if missing:
        sys.path.extend(missing)
        importlib.invalidate_caches()


def _pickled(outcome: Outcome) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        text = f"the result of the body cannot be pickled: {error}"
        return pickle.dumps(Outcome(error_type=type(error).__name__, error=text, traceback=text))
