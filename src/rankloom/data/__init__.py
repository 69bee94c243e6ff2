"""From chat records to the rows each lane trains on.

What needs a tokenizer is imported by its module, ``rankloom.data.prepare``: the processes that build rows
load this package without it.
"""

from __future__ import annotations

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.dealing import Dealer
from rankloom.data.lanes import IGNORE, LaneLoader, LaneMicrobatch
from rankloom.data.loading import LaneReader
from rankloom.data.packing import pack_epoch
from rankloom.data.rows import Counts, Position, Row
from rankloom.data.stream import GlobalStream

__all__ = [
    "IGNORE",
    "Counts",
    "Dealer",
    "GlobalStream",
    "LaneLoader",
    "LaneMicrobatch",
    "LaneReader",
    "Position",
    "Row",
    "TokenizedDataset",
    "pack_epoch",
]
