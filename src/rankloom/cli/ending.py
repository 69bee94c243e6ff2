"""How a command ends: one message on stderr and an exit code, with a traceback only under --debug."""

from __future__ import annotations

import errno
import functools
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeGuard

import typer

from rankloom.errors import RankloomError, UserError, printable

INTERRUPTED = 130
OUTPUT_IS_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Packages a user may lack, and the extra that brings them.
EXTRA_OF_PACKAGE = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "ray": "ray",
}


def ending_well(
    function: Callable[..., object], *, name: str, extra: str, packages: tuple[str, ...], debug: bool
) -> Callable[..., object]:
    """The function of command ``name``, made to end with a message and an exit code whatever happens in it.

    2 for a UserError or a missing extra, 1 for other errors, 130 when interrupted. What typer raises passes.
    """

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        try:
            require_packages(packages, extra=extra)
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except (KeyboardInterrupt, Exception) as error:
            raise typer.Exit(report(error, name=name, debug=debug)) from error

    return run


def report(error: BaseException, *, name: str, debug: bool) -> int:
    """Print what went wrong in command ``name`` on stderr, as one message; returns the exit code."""
    message, code = _message_and_code(error)
    if _is_lost_output(error):
        from rankloom.train.streams import silence

        silence(sys.stdout)
    try:
        if debug:
            traceback.print_exception(error)
        print(f"{' '.join(filter(None, ('rankloom', name)))}: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # a closed pipe or a full disk: the code is all that can be said
        from rankloom.train.streams import silence

        silence(sys.stderr)
    return code


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and the loss of the terminal unless that is ignored (nohup), end a command like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _message_and_code(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, RankloomError):
        return str(error), error.exit_code
    if _is_lost_output(error):
        return f"the output cannot be written: {error.strerror}", 1
    if isinstance(error, ModuleNotFoundError):
        return _explain_missing_module(error), UserError.exit_code
    text = printable(f"{type(error).__name__}: {error}")
    return f"internal error, {text} (add --debug to see where)", 1


def _is_lost_output(error: BaseException) -> TypeGuard[OSError]:
    """Whether standard output took no more, as that on a full disk."""
    return isinstance(error, OSError) and error.filename is None and error.errno in OUTPUT_IS_LOST


def require_packages(packages: tuple[str, ...], *, extra: str) -> None:
    """Raises UserError naming the extra to install if a package is not there. Imports none of them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise UserError(_install_hint(", ".join(missing), extra))


def _explain_missing_module(error: ModuleNotFoundError) -> str:
    package = (error.name or "").split(".")[0]
    extra = EXTRA_OF_PACKAGE.get(package)
    return _install_hint(package, extra) if extra else f"a Python module is missing: {error}"


def _install_hint(missing: str, extra: str) -> str:
    return f"this command needs {missing}, which the {extra!r} extra brings: pip install 'rankloom[{extra}]'"
