"""Looking at the processes of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankloom.driver.gang import Gang
from rankloom.driver.under_way import RemoteTask


def submit(
    gang: Gang, method: str, *args: Any, ranks: Iterable[int] | None = None, **kwargs: Any
) -> dict[int, RemoteTask]:
    """The same call on all ranks, or on some."""
    chosen = sorted(gang.ranks) if ranks is None else ranks
    return {rank: gang.submit(rank, method, args, kwargs) for rank in chosen}


def call(gang: Gang, method: str, *args: Any, ranks: Iterable[int] | None = None, **kwargs: Any) -> list[Any]:
    """The same call on all ranks, or on some, and what they return."""
    handles = submit(gang, method, *args, ranks=ranks, **kwargs)
    return gang.gather(handles, list(handles))


def process_ids(gang: Gang) -> list[int]:
    return call(gang, "process_id")


def title(process_id: int) -> str:
    return Path(f"/proc/{process_id}/cmdline").read_bytes().rstrip(b"\0").decode()


def is_running(process_id: int) -> bool:
    """One that has ended and waits to be looked at by its parent is not."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
