"""The special tokens of a tokenizer trained on the data, and the smallest vocabulary that leaves."""

from __future__ import annotations

__all__ = ["END", "MIN_VOCAB_SIZE", "PAD", "SPECIAL_TOKENS", "TURN_STARTS"]

PAD, END = "<|pad|>", "<|end|>"
TURN_STARTS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SPECIAL_TOKENS = (PAD, END, *TURN_STARTS)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)  # every byte is a token
