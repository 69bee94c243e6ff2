"""From a Hugging Face model to a sharded one by the plan, and back."""

from __future__ import annotations

from rankloom.models.copies import verify_copies
from rankloom.models.export import export, logical_parameters
from rankloom.models.scoring import (
    SequenceScore,
    next_tokens,
    sequence_log_probabilities,
    sequence_score,
    whole_rows,
)
from rankloom.models.sharded import Rows, ShardedModel
from rankloom.models.sources import SafetensorsFolder, SeededParameters, fill

__all__ = [
    "Rows",
    "SafetensorsFolder",
    "SeededParameters",
    "SequenceScore",
    "ShardedModel",
    "export",
    "fill",
    "logical_parameters",
    "next_tokens",
    "sequence_log_probabilities",
    "sequence_score",
    "verify_copies",
    "whole_rows",
]
