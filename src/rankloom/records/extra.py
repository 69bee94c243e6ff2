"""Libraries of the ``data`` extra, imported when a file needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rankloom.errors import UserError

__all__ = ["extra_module"]


def extra_module(name: str, *, what: str) -> Any:
    """The module; raises UserError naming the extra that brings it, for ``what``, if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        library = name.partition(".")[0]
        raise UserError(f'{what} needs {library}; install it with: pip install "rankloom[data]"') from None
