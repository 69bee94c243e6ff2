"""Batches of growing size: by Megatron's own rule, exact by random access, every record once an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.config.rampup import BatchSizes
from rankloom.data import LaneLoader
from rankloom.errors import UserError
from tests.data.chats import dataset, stream


def megatron(consumed: int, start: int, increment: int, samples: int, final: int) -> int:
    """As RampupBatchsizeNumMicroBatchesCalculator.update computes it."""
    per_increment = samples / ((final - start) // increment)
    if consumed > samples:
        return final
    return min(start + int(consumed / per_increment) * increment, final)


@given(
    start=st.integers(1, 8),
    increment=st.integers(1, 8),
    increments=st.integers(1, 6),
    samples=st.integers(1, 300),
    consumed=st.integers(0, 400),
)
@settings(max_examples=300, deadline=None)
def test_the_size_is_that_of_megatron(
    start: int, increment: int, increments: int, samples: int, consumed: int
) -> None:
    final = start + increment * increments
    sizes = BatchSizes(final, (start, increment, samples))
    # Megatron divides in floating point: exactly on a border its quotient may lie below.
    assert sizes.at(consumed) in {
        megatron(c, start, increment, samples, final) for c in (consumed, consumed + 1e-9)
    }  # type: ignore[arg-type]
    grows_at = sizes.grows_at(consumed)
    if grows_at is not None:
        assert sizes.at(grows_at) > sizes.at(consumed) == sizes.at(grows_at - 1)
    assert (grows_at is None) == (sizes.at(consumed) == final)


def test_a_ramp_by_hand() -> None:
    """2, 4, 6, 8 rows, one more increment every 10 samples."""
    rows = stream(dataset([3] * 50), global_batch_size=8, rampup=(2, 2, 30))
    sizes = [len(rows.batch(step0)) for step0 in range(rows.steps_per_epoch(0))]
    assert sizes == [2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8]  # 10, then 22, then 34, then 50 rows
    assert rows.batch_sizes.samples_of(12) == 50
    assert rows.batch_sizes.all_sizes == (2, 4, 6, 8)
    assert [row.row_id for row in rows.batch(8)] == [22, 23, 24, 25, 26, 27]
    assert "steps: 12 in epoch 0 with 2 to 8 rows a step" in rows.describe()


@given(
    records=st.integers(1, 40),
    start=st.integers(1, 4),
    increment=st.integers(1, 4),
    increments=st.integers(0, 4),
    samples=st.integers(1, 80),
    fill=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_record_once_an_epoch_by_random_access(
    records: int, start: int, increment: int, increments: int, samples: int, fill: bool
) -> None:
    final = start + increment * increments
    rampup = (start, increment, samples) if increments else None
    given_settings = {"global_batch_size": final, "rampup": rampup, "last_batch": "fill" if fill else "drop"}
    data = dataset([3] * records)
    try:
        rows = stream(data, **given_settings)
    except UserError:
        assert not fill
        return
    consumed = 0
    for epoch in range(3):
        seen: list[int] = []
        for step0 in range(rows.num_steps(epoch), rows.num_steps(epoch + 1)):
            batch = rows.batch(step0)
            assert batch == stream(data, **given_settings).batch(step0)
            assert len(batch) == rows.batch_sizes.at(consumed)
            real = [row for row in batch if not row.is_filler]
            assert [row.row_id for row in real] == list(range(consumed, consumed + len(real)))
            seen += [record for row in real for record in row.records]
            consumed += len(real)
            assert rows.position_after(step0) == (step0 + 1, epoch, len(seen), consumed)
        assert len(seen) == len(set(seen))
        assert len(seen) == records if fill else records - len(seen) < rows.batch_sizes.at(consumed)


def test_ramps_that_cannot_be_meant() -> None:
    with pytest.raises(UserError) as caught:
        BatchSizes(8, (8, 2, 30))
    assert str(caught.value) == (
        "train.rampup_batch_size [8, 2, 30]: its first size 8 is not smaller than train.global_batch_size "
        "8; set it to null, or begin with less"
    )
    with pytest.raises(UserError) as caught:
        BatchSizes(8, (2, 4, 30))
    assert str(caught.value) == (
        "train.rampup_batch_size [2, 4, 30]: train.global_batch_size 8 - 2 = 6 is not a multiple of the "
        "increment 4; try 3 or 6"
    )


def test_every_size_must_divide_over_the_lanes() -> None:
    rows = stream(dataset([3] * 50), global_batch_size=8, rampup=(2, 2, 30))
    with pytest.raises(UserError, match=r"train\.global_batch_size 2 is not a multiple of"):
        LaneLoader(rows, rows.dataset, lane=0, num_lanes=2, micro_batch_size=2)


def test_a_first_size_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        stream(dataset([3] * 3), global_batch_size=8, rampup=(4, 4, 30), last_batch="drop")
    assert str(caught.value) == (
        "0 steps: epoch 0 has 3 rows (3 records), fewer than the first size of train.rampup_batch_size 4, "
        "and data.last_batch is drop; use data.last_batch: fill, or a global batch of at most 3"
    )
