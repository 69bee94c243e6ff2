"""Token ids as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from rankloom.data.template import special_tokens

__all__ = ["TokenTexts"]


@dataclass(frozen=True)
class TokenTexts:
    """What tokens say, and which are special, side by side with their ids.

    ``texts`` one after the other are the decoded text. A character made of several tokens stands at the last
    of them; the others have "".
    """

    ids: list[int]
    texts: list[str]
    special: list[bool]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> TokenTexts:
        """Of one record."""
        stream = DecodeStream(skip_special_tokens=False)
        backend = tokenizer.backend_tokenizer
        special = {backend.token_to_id(token) for token in special_tokens(tokenizer)}
        numbers = [int(number) for number in ids]
        texts = [stream.step(backend, number) or "" for number in numbers]
        return cls(numbers, texts, [number in special for number in numbers])
