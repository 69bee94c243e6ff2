"""The special tokens of a tokenizer trained on the data, and the smallest vocabulary that leaves."""

from __future__ import annotations

from rankloom.errors import UserError

__all__ = ["END", "MIN_VOCAB_SIZE", "PAD", "SPECIAL_TOKENS", "TURN_STARTS", "refuse_small_vocabulary"]

PAD, END = "<|pad|>", "<|end|>"
TURN_STARTS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SPECIAL_TOKENS = (PAD, END, *TURN_STARTS)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)  # every byte is a token


def refuse_small_vocabulary(size: int) -> None:
    """Raises UserError if a vocabulary of ``size`` has no room for the bytes and the special tokens."""
    if size < MIN_VOCAB_SIZE:
        raise UserError(
            f"model.config.vocab_size {size} is too small to train a tokenizer: 256 bytes + "
            f"{len(SPECIAL_TOKENS)} special tokens = {MIN_VOCAB_SIZE}; use at least {MIN_VOCAB_SIZE}"
        )
