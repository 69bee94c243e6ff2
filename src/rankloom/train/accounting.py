"""Counts of a run: each row, record and token once, whatever the layout; and the rows of the metrics file."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rankloom.comm import Communicator
from rankloom.data import Counts
from rankloom.data.dealing import Imbalance
from rankloom.train.batches import Batches, StepFacts
from rankloom.train.worker import NOTHING, StepOutcome

__all__ = ["Accounting"]


class Accounting:
    """Follows a run from its first step on. ``comm`` tells the bytes of this rank; ``consumed`` is what was
    counted before that step."""

    def __init__(self, comm: Communicator, *, max_seq_length: int, consumed: Counts = NOTHING) -> None:
        self._comm = comm
        self._max_seq_length = max_seq_length
        self.consumed = consumed
        self._losses: list[float] = []
        self._num_skipped = 0
        self._step = 0
        self._facts = StepFacts(0, NOTHING, 0.0, 0, Imbalance(1.0, 1.0))
        self._slots = self._filled = self._num_fillers = self._num_dropped = 0
        self._wait_s = 0.0
        self._since = self._started = time.perf_counter()
        self._bytes_before: dict[str, int] = {}

    def begin(self, step: int, batches: Batches) -> Counts:
        """Starts step ``step`` (from 1); returns what is consumed once it is done, which sets its learning
        rate. A collective."""
        self._step = step
        self._since = time.perf_counter()
        self._bytes_before = self._comm.bytes_sent()
        self._facts = batches.facts(step - 1)
        self.consumed = Counts(*(a + b for a, b in zip(self.consumed, self._facts.counts, strict=True)))
        return self.consumed

    def end(self, outcome: StepOutcome, *, lr: float) -> dict[str, object]:
        """The metrics row of the step, without an evaluation."""
        elapsed = time.perf_counter() - self._since
        sent = self._comm.bytes_sent()
        self._losses.append(outcome.loss)
        self._num_skipped += not outcome.finite
        facts, batch = self._facts, self._facts.counts
        slots = facts.num_rows * self._max_seq_length
        self._slots, self._filled = self._slots + slots, self._filled + batch.tokens
        self._num_fillers += facts.num_rows - batch.rows
        self._num_dropped += facts.dropped_rows
        self._wait_s += outcome.loader_wait_s
        return {
            "step": self._step,
            "loss": outcome.loss,
            "grad_norm": outcome.grad_norm,
            "lr": lr,
            "consumed_samples": self.consumed.rows,
            "consumed_chats": self.consumed.chats,
            "consumed_tokens": self.consumed.tokens,
            "valid_tokens": outcome.valid_tokens,
            "step_time_s": elapsed,
            "tokens_per_second": batch.tokens / elapsed,
            "comm_bytes": {name: number - self._bytes_before[name] for name, number in sent.items()},
            "epoch": facts.epochs,
            "global_batch_size": facts.num_rows,
            "padding": 1 - batch.tokens / slots,
            "lane_imbalance": facts.imbalance.work,
            "lane_token_imbalance": facts.imbalance.tokens,
            "loader_wait_s": outcome.loader_wait_s,
            "eval_loss": None,
            "eval_tokens": None,
        }

    def summary(self, left_out: Mapping[str, int]) -> dict[str, object]:
        """The run so far; ``left_out``: records that are not in the data, by reason."""
        return {
            "steps": len(self._losses),
            "skipped_steps": self._num_skipped,
            "loss_first": self._losses[0] if self._losses else None,
            "loss_last": self._losses[-1] if self._losses else None,
            "consumed_samples": self.consumed.rows,
            "consumed_chats": self.consumed.chats,
            "consumed_tokens": self.consumed.tokens,
            "valid_tokens": self.consumed.valid_tokens,
            "epochs": self._facts.epochs,
            "padding": 1 - self._filled / self._slots if self._slots else 0.0,
            "filler_rows": self._num_fillers,
            "dropped_rows": self._num_dropped,
            "records_left_out": dict(left_out),
            "loader_wait_s": self._wait_s,
            "time_s": time.perf_counter() - self._started,
        }
