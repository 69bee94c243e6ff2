"""Chat records: where they come from, and the refusal of those that cannot be trained on."""

from __future__ import annotations

from rankloom.records.chat import chat_of
from rankloom.records.pythondocs import python_docs
from rankloom.records.reading import RecordStream, Tally, load_records, read_jsonl, stream_records
from rankloom.records.record import ChatRecord, Message, RecordSet
from rankloom.records.source import PYTHON_DOCS, DataFile, Sources, data_files, source_identity

__all__ = [
    "PYTHON_DOCS",
    "ChatRecord",
    "DataFile",
    "Message",
    "RecordSet",
    "RecordStream",
    "Sources",
    "Tally",
    "chat_of",
    "data_files",
    "load_records",
    "python_docs",
    "read_jsonl",
    "source_identity",
    "stream_records",
]
