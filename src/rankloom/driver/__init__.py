"""One controller for all ranks: named axes, calls that reach everybody.

A name loads its module when it is used: axes and calls need neither torch nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankloom.driver.axes import NamedAxes
    from rankloom.driver.calls import WITHIN_LANE, CallSpec, call
    from rankloom.driver.dispatch import BoundCalls, PendingCall
    from rankloom.driver.group import Group, LocalGroup

__all__ = [
    "WITHIN_LANE",
    "BoundCalls",
    "CallSpec",
    "Group",
    "LocalGroup",
    "NamedAxes",
    "PendingCall",
    "call",
]

_MODULES = {
    "WITHIN_LANE": "calls",
    "BoundCalls": "dispatch",
    "CallSpec": "calls",
    "Group": "group",
    "LocalGroup": "group",
    "NamedAxes": "axes",
    "PendingCall": "dispatch",
    "call": "calls",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
