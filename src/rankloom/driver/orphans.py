"""Ray's helpers on a node whose daemon was killed, as when the driver that started it is: they would stay for
a minute, trying to tell a cluster that is gone."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from rankloom.driver.processes import Process

__all__ = ["end_agents_with_parent"]

_AGENTS = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")
_LOOK_S = 0.1


def end_agents_with_parent() -> None:
    """From now on, when the parent of this process ends, so do its agents. For an actor: its parent is Ray's
    daemon on the node, and the actor itself outlives it for a second or two."""
    parent = os.getppid()
    agents = [process for pid in _children(parent) if (process := _agent(pid)) is not None]
    threading.Thread(target=_watch, args=(parent, agents), name="orphans", daemon=True).start()


def _watch(parent: int, agents: list[Process]) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    for agent in agents:
        agent.kill()


def _children(parent: int) -> list[int]:
    """Of Linux; elsewhere none are found."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(fields[1]) == parent:
            found.append(int(file.parent.name))
    return found


def _agent(pid: int) -> Process | None:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return Process.of(pid) if title.startswith(_AGENTS) else None
