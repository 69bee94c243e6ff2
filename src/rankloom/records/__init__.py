"""Chat records: where they come from, and the refusal of those that cannot be trained on."""

from __future__ import annotations

from rankloom.records.jsonl import read_jsonl
from rankloom.records.pythondocs import python_docs
from rankloom.records.record import ChatRecord, Message, RecordSet
from rankloom.records.source import PYTHON_DOCS, load_records, source_identity

__all__ = [
    "PYTHON_DOCS",
    "ChatRecord",
    "Message",
    "RecordSet",
    "load_records",
    "python_docs",
    "read_jsonl",
    "source_identity",
]
