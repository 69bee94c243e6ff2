"""Which records a run trains on, in a name and a number."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rankloom.data.dataset import TokenizedDataset
from rankloom.records.words import counted

__all__ = ["DatasetIdentity"]


@dataclass(frozen=True)
class DatasetIdentity:
    """Which records these are; ``source`` is their name, for messages. A moved file has the same identity."""

    source: str
    num_records: int
    fingerprint: str

    @classmethod
    def of(cls, dataset: TokenizedDataset) -> DatasetIdentity:
        """The fingerprint covers tokens, masks, what was left out or cut, and how often records occur."""
        digest = hashlib.sha256(f"{dataset.content_hash} {dataset.mixture}".encode())
        if not dataset.content_hash:  # it is in memory, and small
            digest.update(dataset.all_ids.tobytes() + dataset.all_trained.tobytes())
        for array in (dataset.starts, dataset.lengths, dataset.valid, dataset.numbers):
            digest.update(array.tobytes())
        return cls(dataset.source, len(dataset), digest.hexdigest())

    def __str__(self) -> str:
        return f"{self.source} ({counted(self.num_records, 'record')}, fingerprint {self.fingerprint[:12]})"
