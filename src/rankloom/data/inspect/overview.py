"""The data of a job at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from rankloom.data.prepare import PreparedData

__all__ = ["Overview", "StepCounts"]

MAX_STEPS = 5


@dataclass(frozen=True)
class StepCounts:
    """What a step holds over all lanes: rows, of them fillers, records, tokens without padding, labels."""

    step: int
    rows: int
    fillers: int
    records: int
    tokens: int
    labels: int


@dataclass(frozen=True)
class Overview:
    """What `train` says about the data, records left out by reason, and the first steps.

    ``num_samples``: records that have tokens; ``num_records``: those of them that are trained on.
    """

    facts: tuple[str, ...]
    num_samples: int
    num_records: int
    left_out: dict[str, int]
    num_steps: int
    num_lanes: int
    sequence_length: int
    first_steps: tuple[StepCounts, ...]

    @classmethod
    def of(cls, data: PreparedData, *, num_samples: int, num_steps: int, num_lanes: int) -> Overview:
        """Of the data of a run of so many steps."""
        return cls(
            facts=data.facts,
            num_samples=num_samples,
            num_records=len(data.dataset),
            left_out=dict(data.dataset.skipped),
            num_steps=num_steps,
            num_lanes=num_lanes,
            sequence_length=data.stream.max_seq_length,
            first_steps=tuple(_counts(data, step) for step in range(1, min(num_steps, MAX_STEPS) + 1)),
        )


def _counts(data: PreparedData, step: int) -> StepCounts:
    rows = data.stream.batch(step - 1)
    counts = data.stream.counts_of(rows)
    fillers = len(rows) - counts.rows
    return StepCounts(step, len(rows), fillers, counts.chats, counts.tokens, counts.valid_tokens)
