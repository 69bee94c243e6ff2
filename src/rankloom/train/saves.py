"""When a run saves checkpoints and exports, and how much time that takes from training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankloom.config import ResolvedConfig
from rankloom.data import Counts
from rankloom.train.reporting import Reporter
from rankloom.train.worker import Worker

__all__ = ["Saves"]

_FIRST_SAVE_S = 60.0  # what a first save may take, as long as none has been seen


class Saves:
    """Of one run, on every rank alike; methods are collectives where they say so."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        worker: Worker,
        reporter: Reporter,
        *,
        max_steps: int,
        before_save: Callable[[], None],
    ) -> None:
        self._before_save = before_save
        self._section = resolved.checkpoint
        self._worker = worker
        self._reporter = reporter
        self._max_steps = max_steps
        self._started_at: float | None = None
        self._longest_s = 0.0
        self.num_saved = 0
        self.blocked_s = 0.0
        self.last: Path | None = None

    @property
    def need_s(self) -> float:
        """Seconds to allow for a checkpoint."""
        return self._longest_s or _FIRST_SAVE_S

    @property
    def going_on(self) -> str:
        """How the run goes on from its last checkpoint, in words; on the first rank."""
        if self._section.resume == "auto":
            return f"the same command goes on from {self.last}"
        return f"with checkpoint.resume auto, the same command goes on from {self.last}"

    def look(self) -> None:
        """After every step: says which checkpoint is complete. Raises RunError where this rank's own writing
        has failed."""
        with self._timed():
            folder = self._worker.poll_save()
        if folder is not None:
            self._complete(folder)

    def after(self, step: int, consumed: Counts, *, ends: bool) -> None:
        """Saves and exports what is due after a step; ``ends``: the run ends early after it. A collective."""
        self.look()
        exports = self._section.export_every and step % self._section.export_every == 0
        if exports and not ends:  # before the checkpoint: a run that goes on from there exports it no more
            self._export(step)
        if self._is_due(step, ends=ends):
            with self._timed():
                self._settle()
                self._before_save()
                self._started_at = time.monotonic()
                self._worker.save(step, consumed)
        if exports and ends:
            self._export(step)

    def _export(self, step: int) -> None:
        self._worker.export(Path(self._section.dir) / "exports" / f"step-{step:08d}")

    def finish(self) -> None:
        """Waits for the save under way. A collective; raises RunError where it has failed."""
        with self._timed():
            self._settle()

    def summary(self) -> dict[str, object]:
        return {"checkpoints": self.num_saved, "checkpoint_s": self.blocked_s}

    def _is_due(self, step: int, *, ends: bool) -> bool:
        every = self._section.save_every
        at_end = self._section.saves and (ends or step == self._max_steps)
        return at_end or (every > 0 and step % every == 0)

    def _settle(self) -> None:
        self._worker.wait_saved()
        folder = self._worker.poll_save()
        if folder is not None:
            self._complete(folder)

    def _complete(self, folder: Path) -> None:
        assert self._started_at is not None
        self._longest_s = max(self._longest_s, time.monotonic() - self._started_at)
        self.num_saved += 1
        self.last = folder
        self._reporter.note(f"saved {folder}")

    @contextmanager
    def _timed(self) -> Iterator[None]:
        since = time.perf_counter()
        yield
        self.blocked_s += time.perf_counter() - since
