"""What is said about the data before the first step, and again in the summary."""

from __future__ import annotations

from collections import Counter

from rankloom.data.dataset import TokenizedDataset
from rankloom.records.words import counted, total_by_reason

__all__ = ["data_facts", "left_out", "left_out_words", "validation_facts"]


def data_facts(
    dataset: TokenizedDataset, validation: TokenizedDataset | None, tokenizer_size: int, name: str
) -> list[str]:
    """Short lines for the log."""
    return [
        f"data: {dataset.source}, {_size(dataset, 'trained')}",
        *_told("left out", dataset),
        *_mixture(dataset),
        f"tokenizer: {name}, {counted(tokenizer_size, 'token')}",
        *([] if validation is None else validation_facts(validation)),
    ]


def validation_facts(validation: TokenizedDataset) -> list[str]:
    """The same about what is evaluated."""
    return [
        f"validation: {validation.source}, {_size(validation, 'evaluated')}",
        *_told("left out of validation", validation),
    ]


def left_out(dataset: TokenizedDataset) -> str:
    """Records that are not trained on, by reason, and those that were cut; "" if there are none."""
    return left_out_words(dataset.skipped, dataset.num_truncated)


def left_out_words(skipped: Counter[str], num_truncated: int) -> str:
    """The same from counts."""
    parts = []
    if skipped:
        parts.append(total_by_reason(skipped, "record"))
    if num_truncated:
        ends = "the end of 1 record" if num_truncated == 1 else f"the ends of {num_truncated:,} records"
        parts.append(f"{ends} (beyond data.max_seq_length)")
    return ", ".join(parts)


def _size(dataset: TokenizedDataset, used: str) -> str:
    share = int(dataset.valid.sum()) / dataset.num_tokens
    records, tokens = counted(len(dataset), "record"), counted(dataset.num_tokens, "token")
    return f"{records}, {tokens}, {share:.1%} of them {used}"


def _mixture(dataset: TokenizedDataset) -> list[str]:
    if dataset.mixture.is_plain:
        return []
    counts = dataset.mixture.counts(dataset.file_of)
    parts = [
        f"{name} {places:,} of {counted(num_records, 'record')} (weight {weight:g})"
        for name, (num_records, weight, places) in zip(dataset.source_names(), counts, strict=True)
    ]
    return [f"mixture of epoch 0: {'; '.join(parts)}"]


def _told(what: str, dataset: TokenizedDataset) -> list[str]:
    words = left_out(dataset)
    return [f"{what}: {words}"] if words else []
