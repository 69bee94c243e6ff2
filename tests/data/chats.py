"""Small chats, tokenizers and datasets for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from rankloom.data import GlobalStream, TokenizedDataset
from rankloom.data.tokenizer import train_tokenizer
from rankloom.records import ChatRecord, Message

TEXT = "the quick brown fox jumps over a lazy dog while it rains in Zürich 東京 and nobody is there to see it"
WORDS = TEXT.split()


def record(*turns: tuple[str, str], index: int = 0) -> ChatRecord:
    """A chat from (role, content) pairs, as if from line index + 1 of chats.jsonl."""
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return ChatRecord(index=index, messages=messages, source="chats.jsonl", line=index + 1)


def chats(count: int) -> list[ChatRecord]:
    """Chats of one question and one answer of varying length."""
    return [
        record(
            ("user", " ".join(WORDS[: 1 + i % 7])),
            ("assistant", " ".join(WORDS[i % 5 : 6 + i % 11])),
            index=i,
        )
        for i in range(count)
    ]


def tokenizer_with(template: str, *special_tokens: str, eos_token: str) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer that has these special tokens and this template."""
    tokenizer = train_tokenizer(chats(30), max_vocab_size=400)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special_tokens), "eos_token": eos_token})
    tokenizer.chat_template = template
    return tokenizer


def dataset(lengths: Sequence[int], *, trained_from: int = 1) -> TokenizedDataset:
    """Record i has lengths[i] tokens, 100 * i, 100 * i + 1, ...; trained from token ``trained_from`` on."""
    ids = [[100 * i + t for t in range(length)] for i, length in enumerate(lengths)]
    trained = [[t >= trained_from for t in range(length)] for length in lengths]
    return TokenizedDataset.of(ids, trained)


def stream(data: TokenizedDataset, **settings: object) -> GlobalStream:
    """A stream with the settings that a test leaves open filled in."""
    given: dict[str, object] = {"max_seq_length": 8, "packing": False, "seed": 0, "global_batch_size": 4}
    return GlobalStream(data, **(given | settings))  # type: ignore[arg-type]
