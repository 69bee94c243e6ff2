"""From chat records to the rows each lane trains on."""

from __future__ import annotations

from rankloom.data.dataset import TokenizedDataset
from rankloom.data.lanes import IGNORE, LaneLoader, LaneMicrobatch
from rankloom.data.packing import pack_epoch
from rankloom.data.prepare import PreparedData, prepare
from rankloom.data.stream import Counts, GlobalStream, Row

__all__ = [
    "IGNORE",
    "Counts",
    "GlobalStream",
    "LaneLoader",
    "LaneMicrobatch",
    "PreparedData",
    "Row",
    "TokenizedDataset",
    "pack_epoch",
    "prepare",
]
