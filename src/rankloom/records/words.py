"""Numbers of things in messages."""

from __future__ import annotations

from collections import Counter

__all__ = ["by_reason", "counted", "total_by_reason"]


def counted(number: int, one: str, many: str = "") -> str:
    """
    >>> counted(1, "record"), counted(2000, "record"), counted(2, "entry", "entries")
    ('1 record', '2,000 records', '2 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def by_reason(counts: Counter[str]) -> str:
    """
    >>> by_reason(Counter({"not valid JSON": 1, "empty content": 2}))
    '2 empty content, 1 not valid JSON'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())


def total_by_reason(counts: Counter[str], one: str) -> str:
    """
    >>> total_by_reason(Counter({"not valid JSON": 1}), "record")
    '1 record (not valid JSON)'
    >>> total_by_reason(Counter({"not valid JSON": 1, "empty content": 2}), "record")
    '3 records (2 empty content, 1 not valid JSON)'
    """
    reasons = by_reason(counts) if len(counts) > 1 else next(iter(counts))
    return f"{counted(counts.total(), one)} ({reasons})"
