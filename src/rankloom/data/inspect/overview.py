"""The data of a job at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from rankloom.data.rows import Counts

__all__ = ["MAX_STEPS", "Overview", "StepCounts"]

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

    @classmethod
    def of(cls, step: int, num_rows: int, counts: Counts) -> StepCounts:
        """``num_rows``: with fillers."""
        fillers = num_rows - counts.rows
        return cls(step, num_rows, fillers, counts.chats, counts.tokens, counts.valid_tokens)


@dataclass(frozen=True)
class Overview:
    """What `train` says about the data, records left out by reason, and the first steps; or of the validation
    data, and the first batches of an evaluation.

    ``num_samples``: records that have tokens (of an Energon data set, all samples); ``num_records``: those of
    them that are used, where that is known before they are tokenised. ``num_steps``: None where nothing ends
    the run.
    """

    facts: tuple[str, ...]
    num_samples: int
    num_records: int | None
    left_out: dict[str, int]
    num_steps: int | None
    num_lanes: int
    sequence_length: int
    first_steps: tuple[StepCounts, ...]
    validation: bool = False
