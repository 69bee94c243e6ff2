"""What is said about the data before the first step, and again in the summary."""

from __future__ import annotations

from collections import Counter

from rankloom.data.dataset import TokenizedDataset

__all__ = ["data_facts", "left_out", "left_out_words"]


def data_facts(
    dataset: TokenizedDataset, validation: TokenizedDataset | None, tokenizer_size: int, name: str
) -> list[str]:
    """Short lines for the log."""
    facts = [
        f"data: {dataset.source}, {_size(dataset)}",
        *_mixture(dataset),
        f"tokenizer: {name}, {tokenizer_size:,} tokens",
        *_left_out(dataset, "records"),
    ]
    if validation is not None:
        facts += [
            f"validation: {validation.source}, {_size(validation)}",
            *_left_out(validation, "validation records"),
        ]
    return facts


def left_out(dataset: TokenizedDataset) -> str:
    """Records that are not trained on, by reason, and those that were cut; "" if there are none."""
    return left_out_words(dataset.skipped, dataset.num_truncated)


def left_out_words(skipped: Counter[str], num_truncated: int) -> str:
    """The same from counts."""
    parts = []
    if skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.most_common())
        parts.append(f"{skipped.total():,} records ({reasons})")
    if num_truncated:
        parts.append(f"the ends of {num_truncated:,} records cut to data.max_seq_length")
    return ", ".join(parts)


def _size(dataset: TokenizedDataset) -> str:
    trained = int(dataset.valid.sum()) / dataset.num_tokens
    return f"{len(dataset):,} records, {dataset.num_tokens:,} tokens, {trained:.1%} of them trained"


def _mixture(dataset: TokenizedDataset) -> list[str]:
    if dataset.mixture.is_plain:
        return []
    counts = dataset.mixture.counts(dataset.file_of)
    parts = [
        f"{name} {places:,} of {num_records:,} records (weight {weight:g})"
        for name, (num_records, weight, places) in zip(dataset.source_names(), counts, strict=True)
    ]
    return [f"mixture of epoch 0: {'; '.join(parts)}"]


def _left_out(dataset: TokenizedDataset, what: str) -> list[str]:
    facts = []
    if dataset.skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dataset.skipped.most_common())
        facts.append(f"{what} left out: {dataset.skipped.total():,} ({reasons})")
    if dataset.num_truncated:
        facts.append(f"{what} cut to data.max_seq_length: {dataset.num_truncated:,}")
    return facts
