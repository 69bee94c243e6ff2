"""Counts of a run: each row, record and token once, whatever the layout; and the rows of the metrics file."""

from __future__ import annotations

import time

from rankloom.comm import Communicator
from rankloom.data import Counts, GlobalStream
from rankloom.train.worker import StepOutcome

__all__ = ["Accounting"]


class Accounting:
    """Follows a run from its first step on. ``comm`` tells the bytes of this rank."""

    def __init__(self, stream: GlobalStream, comm: Communicator) -> None:
        self._stream = stream
        self._comm = comm
        self._consumed = Counts(0, 0, 0, 0)
        self._losses: list[float] = []
        self._num_skipped = 0
        self._step = 0
        self._batch = Counts(0, 0, 0, 0)
        self._since = self._started = time.perf_counter()
        self._bytes_before: dict[str, int] = {}

    def begin(self, step: int) -> int:
        """Starts step ``step`` (from 1); returns the rows consumed once it is done, which set its learning
        rate."""
        self._step = step
        self._since = time.perf_counter()
        self._bytes_before = self._comm.bytes_sent()
        self._batch = self._stream.counts(step - 1)
        self._consumed = Counts(*(a + b for a, b in zip(self._consumed, self._batch, strict=True)))
        return self._consumed.rows

    def end(self, outcome: StepOutcome, *, lr: float) -> dict[str, object]:
        """The metrics row of the step."""
        self._losses.append(outcome.loss)
        self._num_skipped += not outcome.finite
        elapsed = time.perf_counter() - self._since
        return {
            "step": self._step,
            "loss": outcome.loss,
            "grad_norm": outcome.grad_norm,
            "lr": lr,
            "consumed_samples": self._consumed.rows,
            "consumed_chats": self._consumed.chats,
            "consumed_tokens": self._consumed.tokens,
            "valid_tokens": outcome.valid_tokens,
            "step_time_s": elapsed,
            "tokens_per_second": self._batch.tokens / elapsed,
            "comm_bytes": {
                name: sent - self._bytes_before[name] for name, sent in self._comm.bytes_sent().items()
            },
        }

    def summary(self) -> dict[str, object]:
        """The run so far."""
        return {
            "steps": len(self._losses),
            "skipped_steps": self._num_skipped,
            "loss_first": self._losses[0] if self._losses else None,
            "loss_last": self._losses[-1] if self._losses else None,
            "consumed_samples": self._consumed.rows,
            "consumed_chats": self._consumed.chats,
            "consumed_tokens": self._consumed.tokens,
            "time_s": time.perf_counter() - self._started,
        }
