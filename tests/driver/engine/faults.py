"""Reporters that do something to a rank in the middle of a run, and how its process is found."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.runtime.runs import Recorder


class Striking(Recorder):
    """Sends a signal to the process of ``rank`` when a step is told, once for each of ``steps``."""

    def __init__(self, rank: int, *steps: int, number: signal.Signals = signal.SIGKILL) -> None:
        super().__init__()
        self._rank, self._steps, self._number = rank, list(steps), number

    def step(self, metrics: Mapping[str, object]) -> None:
        super().step(metrics)
        if self._steps and metrics["step"] == self._steps[0]:
            self._steps.pop(0)
            os.kill(process_of(self._rank), self._number)


class Strikes:
    """Sends ``signal_number`` to ranks of this process's cluster at random moments, from a thread, while
    ``due`` gives True; ``done``: how many."""

    def __init__(
        self,
        *,
        seed: int,
        number: int,
        within_s: float = 20.0,
        signal_number: signal.Signals = signal.SIGKILL,
        due: Callable[[], bool] = lambda: True,
    ) -> None:
        self.done = 0
        self._random, self._number, self._within_s = random.Random(seed), number, within_s
        self._signal_number, self._due = signal_number, due
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._strike, daemon=True)

    def __enter__(self) -> Strikes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _strike(self) -> None:
        while self.done < self._number and not self._over.wait(self._random.uniform(0.0, self._within_s)):
            if self._due() and (there := ranks_running()):
                os.kill(self._random.choice(there), self._signal_number)
                self.done += 1


def process_of(rank: int) -> int:
    """Of this process's own cluster: others may run on the machine."""
    [found] = [pid for pid in ranks_running() if re.match(rf"ray::Rank{rank}\b", _title(pid))]
    return found


def ranks_running() -> list[int]:
    """All processes of ranks that descend from this one."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _title(pid).startswith("ray::Rank") and os.getpid() in _ancestors(pid)]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return ""


def _ancestors(pid: int) -> list[int]:
    found = [pid]
    while found[-1] > 1:
        try:
            stat = Path(f"/proc/{found[-1]}/stat").read_text()
        except OSError:
            break
        found.append(int(stat.rpartition(")")[2].split()[1]))
    return found
