"""Records that do not fit, and what is on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rankloom.data import TokenizedDataset
from rankloom.data.dataset import write_dataset
from rankloom.errors import UserError
from tests.data.chats import dataset, record


def test_overlong_records_are_dropped_and_counted() -> None:
    fitted = dataset([3, 9, 8, 12]).fitted(8, overlong="drop")
    assert fitted.lengths.tolist() == [3, 8]
    assert fitted.ids(1).tolist() == list(range(200, 208))
    assert fitted.skipped == {"longer than data.max_seq_length": 2}
    assert fitted.record_name(1) == "memory, record 2"


def test_overlong_records_are_cut() -> None:
    data = dataset([3, 9, 8, 12], trained_from=2)
    fitted = data.fitted(8, overlong="truncate")
    assert fitted.lengths.tolist() == [3, 8, 8, 8]
    assert fitted.valid.tolist() == [1, 6, 6, 6]
    assert fitted.ids(3).tolist() == list(range(300, 308))
    assert fitted.num_truncated == 2
    assert data.valid.tolist() == [1, 7, 6, 10]


def test_a_record_cut_before_its_answer_is_left_out() -> None:
    cut = TokenizedDataset.of([[1] * 5, [2] * 12], [[False, True] + [False] * 3, [False] * 9 + [True] * 3])
    kept = cut.fitted(8, overlong="truncate")
    assert len(kept) == 1
    assert kept.skipped == {"no trained token": 1}
    assert kept.num_truncated == 0


def test_overlong_records_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        dataset([3, 9, 8, 12]).fitted(8, overlong="error")
    assert str(caught.value) == (
        "memory, record 1 has 9 tokens, data.max_seq_length is 8 (longer: 2 of 4 records, the longest has 12 "
        "tokens); raise data.max_seq_length, or set data.overlong to drop or truncate"
    )
    with pytest.raises(UserError, match=r'data\.overlong is "cut"; use "error", "drop" or "truncate"'):
        dataset([3]).fitted(8, overlong="cut")


def test_nothing_left() -> None:
    with pytest.raises(UserError) as caught:
        dataset([9, 12]).fitted(8, overlong="drop")
    assert str(caught.value) == (
        "memory: no record is left to train on (2 longer than data.max_seq_length); the shortest has 9 "
        "tokens and data.max_seq_length is 8"
    )


def test_written_and_mapped(tmp_path: Path) -> None:
    ids = [np.arange(4, dtype=np.int32), np.arange(10, 13, dtype=np.int32)]
    masks = [np.array([True, False, True, True]), np.array([False, False, True])]
    turns = (("user", "a"), ("assistant", "b"))
    encoded = [(record(*turns, index=3 * i), ids[i], masks[i]) for i in range(2)]
    write_dataset(tmp_path, encoded, skipped=Counter({"empty content": 2}))
    found = TokenizedDataset.open(tmp_path, source="chats.jsonl")
    assert len(found) == 2
    assert found.num_tokens == 7
    for i in range(2):
        assert found.ids(i).tolist() == ids[i].tolist()
        assert found.trained(i).tolist() == masks[i].tolist()
    assert found.valid.tolist() == [2, 1]
    assert found.record_name(1) == "chats.jsonl, line 4"
    assert found.skipped == {"empty content": 2}
    assert isinstance(found.all_ids, np.memmap)
    assert len(found.content_hash) == 64
