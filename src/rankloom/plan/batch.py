"""Batch arithmetic, as part of a plan. It lives in ``config``, which refuses what does not divide."""

from __future__ import annotations

from rankloom.config.batch import BatchArithmetic, check_sequence_length, sequence_multiple

__all__ = ["BatchArithmetic", "check_sequence_length", "sequence_multiple"]
