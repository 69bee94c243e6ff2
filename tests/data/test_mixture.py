"""Weighted mixtures and the seeded split: exact counts, from the seed alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.data import TokenizedDataset
from rankloom.data.mixture import Mixture
from rankloom.errors import UserError
from tests.data.chats import dataset, stream


def mixed(sizes: list[int], weights: list[float]) -> TokenizedDataset:
    """Sources with these numbers of records, a file each."""
    file_of = np.repeat(np.arange(len(sizes)), sizes)
    data = dataset([3 + i % 4 for i in range(len(file_of))])
    files = tuple((f"{chr(97 + i)}.jsonl", "line") for i in range(len(sizes)))
    mixture = Mixture.of(range(len(sizes)), weights)
    return replace(data, file_of=file_of, files=files, mixture=mixture)


def test_without_weights_each_record_occurs_once_in_order() -> None:
    data = mixed([3, 2], [1.0, 1.0])
    for epoch in range(3):
        assert data.epoch(epoch, seed=5).tolist() == [0, 1, 2, 3, 4]


def test_whole_weights_repeat_every_record() -> None:
    data = mixed([2, 3], [2.0, 1.0])
    assert data.epoch(0, seed=0).tolist() == data.epoch(7, seed=3).tolist() == [0, 0, 1, 1, 2, 3, 4]


def test_half_a_weight_takes_every_record_once_in_two_epochs() -> None:
    data = mixed([5, 4], [1.0, 0.5])
    epochs = [data.epoch(epoch, seed=1).tolist() for epoch in range(4)]
    assert [len(epoch) for epoch in epochs] == [7] * 4
    assert all(epoch[:5] == [0, 1, 2, 3, 4] for epoch in epochs)
    assert sorted(epochs[0][5:] + epochs[1][5:]) == sorted(epochs[2][5:] + epochs[3][5:]) == [5, 6, 7, 8]


def test_a_weight_of_one_and_a_half() -> None:
    data = mixed([4], [1.5])
    assert sorted(Counter(data.epoch(0, seed=0).tolist()).values()) == [1, 1, 2, 2]
    both = Counter(data.epoch(0, seed=0).tolist() + data.epoch(1, seed=0).tolist())
    assert both == {0: 3, 1: 3, 2: 3, 3: 3}


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    hundredths=st.lists(st.integers(1, 350), min_size=4, max_size=4),
    seed=st.integers(0, 9),
    epochs=st.integers(1, 6),
)
def test_counts_are_exact(sizes: list[int], hundredths: list[int], seed: int, epochs: int) -> None:
    weights = [number / 100 for number in hundredths[: len(sizes)]]
    data = mixed(sizes, weights) if sum(sizes) else mixed([1], [weights[0]])
    sizes = sizes if sum(sizes) else [1]
    drawn = [data.epoch(epoch, seed=seed).tolist() for epoch in range(epochs)]
    seen = Counter(position for epoch in drawn for position in epoch)
    first = 0
    for size, number in zip(sizes, hundredths, strict=False):
        mine = [seen[position] for position in range(first, first + size)]
        total = math.floor(Fraction(number, 100) * size * epochs + Fraction(1, 2))
        assert sum(mine) == total
        if size:
            assert {*mine} <= {total // size, -(-total // size)}
        for epoch in drawn:
            of_epoch = Counter(position for position in epoch if first <= position < first + size)
            counts = [of_epoch[position] for position in range(first, first + size)]
            assert max(counts, default=0) - min(counts, default=0) <= 1
        first += size


def test_the_seed_decides_which_records_occur_once_more() -> None:
    data = mixed([40], [0.5])
    assert data.epoch(0, seed=1).tolist() == data.epoch(0, seed=1).tolist()
    assert data.epoch(0, seed=1).tolist() != data.epoch(0, seed=2).tolist()


def test_the_stream_shuffles_what_the_mixture_gives() -> None:
    data = mixed([6, 2], [0.5, 3.0])
    rows = stream(data, global_batch_size=3)
    assert rows.steps_per_epoch(0) == 3
    for epoch in range(2):
        batches = [rows.batch(epoch * 3 + step) for step in range(3)]
        trained = [record for batch in batches for row in batch for record in row.records]
        assert sorted(trained) == data.epoch(epoch, seed=0).tolist()
        assert trained != sorted(trained)


def test_weights_count_the_records_that_are_left() -> None:
    """Half of the records that fit, not half of all."""
    data = replace(dataset([4, 20, 4, 20, 4, 4]), mixture=Mixture.of([0], [0.5]))
    fitted = data.fitted(8, overlong="drop")
    assert len(fitted) == 4
    assert len(fitted.epoch(0, seed=0)) == 2


def test_weights_that_leave_nothing_or_take_everything() -> None:
    data = replace(dataset([3] * 4), mixture=Mixture((0,), (1e-12,)))
    with pytest.raises(UserError) as caught:
        stream(data)
    assert str(caught.value) == (
        "0 steps: the weights in data.train leave no record in epoch 0 (of 4 records); use larger ones"
    )
    with pytest.raises(UserError) as caught:
        stream(replace(data, mixture=Mixture((0,), (1e9,))))
    assert str(caught.value) == (
        "data.train: a weight of 1e+09 makes 4,000,000,000 of 4 records in an epoch, more than 100,000,000; "
        "use a smaller one, and more epochs"
    )


def test_a_split_is_disjoint_and_covers_everything() -> None:
    data = dataset([5] * 40)
    train, held_out = data.split(0.1, seed=3)
    assert (len(train), len(held_out)) == (36, 4)
    assert sorted([*train.numbers, *held_out.numbers]) == list(range(40))
    assert held_out.numbers.tolist() == sorted(held_out.numbers)
    assert data.split(0.1, seed=3)[1].numbers.tolist() == held_out.numbers.tolist()
    assert data.split(0.1, seed=4)[1].numbers.tolist() != held_out.numbers.tolist()
    assert held_out.ids(0).tolist() == data.ids(int(held_out.numbers[0])).tolist()


def test_what_is_held_out_does_not_depend_on_lengths() -> None:
    """So a record stays on its side when max_seq_length changes."""
    data = dataset([5, 30] * 20)
    whole = {int(number) for number in data.split(0.25, seed=0)[1].numbers}
    short = data.split(0.25, seed=0)[1].fitted(8, overlong="drop")
    assert {int(number) for number in short.numbers} == {number for number in whole if number % 2 == 0}


@pytest.mark.parametrize(("share", "count"), [(0.1, 0), (0.9, 4)])
def test_a_split_without_records_on_one_side(share: float, count: int) -> None:
    with pytest.raises(UserError) as caught:
        dataset([5] * 4).split(share, seed=0)
    assert str(caught.value) == (
        f"data.validation_split {share:g} of 4 records is {count}: at least one record is needed for "
        "validation and one for training"
    )
