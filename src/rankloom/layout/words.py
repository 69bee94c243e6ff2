"""Ranks in words: "0-7", "0,4,8,12", the first and the last of many, or stretches "0-3, 8-11"."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["ranks_text", "stretches_text"]


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


def stretches_text(ranks: Sequence[int], *, limit: int = 8) -> str:
    """Ascending ranks as stretches of neighbours, at most ``limit`` of them; for equal steps the first two
    and the last.

    >>> stretches_text([0, 1, 2, 3, 8, 9, 12]), stretches_text(range(0, 64, 2))
    ('0-3, 8, 9, 12', '0, 2, ..., 62')
    """
    stretches: list[list[int]] = []
    for rank in ranks:
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1].append(rank)
        else:
            stretches.append([rank])
    texts = [text for stretch in stretches for text in _stretch(stretch)]
    if len(texts) <= limit:
        return ", ".join(texts)
    if len({b - a for a, b in pairwise(ranks)}) == 1:
        return f"{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}"
    return f"{', '.join(texts[:limit])}, ..."


def _stretch(ranks: list[int]) -> list[str]:
    return [str(rank) for rank in ranks] if len(ranks) < 3 else [f"{ranks[0]}-{ranks[-1]}"]
