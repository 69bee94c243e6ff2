"""Ranks in words: "0-7", "0,4,8,12", or the first and the last of many."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ranks_text"]


def ranks_text(ranks: Sequence[int], *, limit: int = 8) -> str:
    """Ascending ranks, at most ``limit`` of them named one by one; neighbours as "first-last".

    >>> ranks_text([0, 1, 2, 3]), ranks_text([0, 4]), ranks_text(range(0, 40, 4), limit=4)
    ('0-3', '0,4', '0,4,..,36')
    """
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) > limit:
        return f"{','.join(map(str, ranks[: limit - 2]))},..,{ranks[-1]}"
    return ",".join(map(str, ranks))
