"""Processes that tests start, and those that they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MARK = "RANKLOOM_TEST_MARK"


class Launch:
    """A launcher in a process of its own, with its output; knows every process that descends from it."""

    def __init__(self, *arguments: str, module: str = "tests.train.launch") -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module.split(), *arguments],
            cwd=ROOT,
            env={**os.environ, _MARK: self._mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout and stderr. Waits until whoever holds the pipes is gone too."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """The command lines of processes that descend from the launcher and still are there."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended in the meantime, or is another user's
        return found

    def has(self, pid: int) -> bool:
        """Whether a process descends from the launcher."""
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return f"{_MARK}={self._mark}".encode() in environ.split(b"\0")

    def rank_pids(self, folder: Path) -> dict[int, int]:
        """The process of each rank, told by the log in ``folder`` that it prints to."""
        found = {}
        for link in Path("/proc").glob("[0-9]*/fd/1"):
            try:
                target = link.readlink()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if target.parent == folder and target.name.startswith("rank-"):
                found[int(target.stem.removeprefix("rank-"))] = int(link.parts[2])
        return found


def until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
