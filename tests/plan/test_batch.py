"""Batch arithmetic in config keys, and the multiple a row's length must be."""

from __future__ import annotations

import re
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan.batch import BatchArithmetic, check_sequence_length, sequence_multiple


def layout(world_size: int, *, tp: int = 1, w: int | None = None, cp: int = 1, **settings: int | bool):
    return GTPParallelLayout.resolve(
        world_size=world_size,
        tensor_model_parallel_size=tp,
        tensor_parallel_num_weight_shards=w,
        context_parallel_size=cp,
        **settings,
    )


def refusal(the_layout: GTPParallelLayout, global_batch_size: int, micro_batch_size: int = 1) -> str:
    with pytest.raises(UserError) as refused:
        BatchArithmetic.compute(
            the_layout, global_batch_size=global_batch_size, micro_batch_size=micro_batch_size
        )
    return str(refused.value)


def test_accumulation_counts_lanes_not_ranks() -> None:
    four_lanes = layout(8, tp=2, w=8)
    batch = BatchArithmetic.compute(four_lanes, global_batch_size=8, micro_batch_size=1)
    assert batch == BatchArithmetic(global_batch_size=8, micro_batch_size=1, num_lanes=4, num_microbatches=2)
    assert batch.rows_per_lane == 2


@pytest.mark.parametrize(
    ("the_layout", "num_lanes"),
    [(layout(8), 8), (layout(8, tp=2), 4), (layout(4), 4), (layout(4, cp=2), 2), (layout(8, w=4, cp=2), 4)],
)
def test_the_global_batch_does_not_change_with_the_layout(
    the_layout: GTPParallelLayout, num_lanes: int
) -> None:
    batch = BatchArithmetic.compute(the_layout, global_batch_size=8, micro_batch_size=1)
    assert batch.global_batch_size == 8
    assert (batch.num_lanes, batch.num_microbatches) == (num_lanes, 8 // num_lanes)


def test_a_batch_that_does_not_divide_speaks_in_config_keys() -> None:
    message = refusal(layout(16, tp=8), 3)
    for part in (
        "train.global_batch_size 3",
        "train.micro_batch_size 1",
        "2 lanes = 16 / (1 x 1 x 8)",
        "cluster.world_size",
        "try 2 or 4",
    ):
        assert part in message


def test_the_lanes_in_the_message_count_the_runtime_context() -> None:
    message = refusal(layout(16, w=4, cp=2, tensor_parallel_num_sequence_shards=2), 3)
    assert "4 lanes = 16 / (1 x 4 x 1)" in message
    assert "try 4 " in message


def test_a_microbatch_that_is_too_large_may_be_what_to_change() -> None:
    message = refusal(layout(2), 12, micro_batch_size=4)
    assert "8 = train.micro_batch_size 4 x 2 lanes" in message
    assert "try 8 or 16, or train.micro_batch_size 3" in message


@pytest.mark.parametrize(("global_batch_size", "micro_batch_size"), [(0, 1), (-4, 1), (4, 0)])
def test_sizes_below_one_are_range_errors(global_batch_size: int, micro_batch_size: int) -> None:
    assert "must be an integer of at least 1" in refusal(layout(2), global_batch_size, micro_batch_size)


@pytest.mark.parametrize(
    ("the_layout", "multiple"),
    [
        (layout(8, tp=4, cp=2), 8),
        (layout(6, tp=3, cp=2), 12),
        (layout(4, cp=4), 8),
        (layout(8, w=4, cp=2, tensor_parallel_num_sequence_shards=4), 16),
        (layout(3, tp=3), 3),
        (layout(4, tp=4), 4),
        (layout(8, tp=4, cp=2, sequence_parallel=False), 4),
        (layout(4, tp=4, sequence_parallel=False), 1),
        (layout(8), 1),
    ],
)
def test_sequence_multiple(the_layout: GTPParallelLayout, multiple: int) -> None:
    assert sequence_multiple(the_layout) == multiple
    check_sequence_length(3 * multiple, the_layout)


def test_a_row_length_that_cannot_be_cut_names_the_multiple() -> None:
    with pytest.raises(UserError) as refused:
        check_sequence_length(4, layout(8, tp=4, cp=2))
    assert str(refused.value) == (
        "data.max_seq_length 4 is not a multiple of 8 = runtime context parallel size 2 x "
        "lcm(2, tensor_model_parallel_size 4) with sequence_parallel true; try 8"
    )


@pytest.mark.parametrize(
    ("the_layout", "length", "remedy"),
    [(layout(4, cp=4), 510, "504 or 512"), (layout(3, tp=3), 512, "510 or 513")],
)
def test_the_nearest_lengths_are_offered(the_layout: GTPParallelLayout, length: int, remedy: str) -> None:
    with pytest.raises(UserError, match=f"try {remedy}$"):
        check_sequence_length(length, the_layout)


SIZES = st.integers(1, 6)


@given(tp=SIZES, cp=SIZES, sequence_shards=SIZES, sequence_parallel=st.booleans())
def test_the_multiple_is_the_smallest_that_can_be_cut(
    tp: int, cp: int, sequence_shards: int, sequence_parallel: bool
) -> None:
    if tp > 1 and not sequence_parallel:
        sequence_shards = 1
    degree = tp if sequence_parallel else 1
    the_layout = layout(
        tp * cp * sequence_shards,
        tp=tp,
        w=tp * sequence_shards,
        cp=cp,
        sequence_parallel=sequence_parallel,
        tensor_parallel_num_sequence_shards=degree * sequence_shards,
    )
    context = the_layout.runtime_context_parallel_size

    def can_be_cut(length: int) -> bool:
        two_chunks_a_rank = context == 1 or length % (2 * context) == 0
        return two_chunks_a_rank and length % context == 0 and length // context % degree == 0

    first = next(length for length in range(1, 2 * context * lcm(2, tp) + 1) if can_be_cut(length))
    assert sequence_multiple(the_layout) == first


@given(lanes=SIZES, micro_batch_size=SIZES, global_batch_size=st.integers(1, 40))
def test_every_batch_divides_or_the_remedies_do(
    lanes: int, micro_batch_size: int, global_batch_size: int
) -> None:
    the_layout = layout(lanes)
    if global_batch_size % (lanes * micro_batch_size) == 0:
        batch = BatchArithmetic.compute(
            the_layout, global_batch_size=global_batch_size, micro_batch_size=micro_batch_size
        )
        assert batch.rows_per_lane * batch.num_lanes == global_batch_size
        return
    message = refusal(the_layout, global_batch_size, micro_batch_size)
    tries = re.search(r"try (\d+)(?: or (\d+))?", message)
    assert tries
    for size in [int(text) for text in tries.groups() if text]:
        BatchArithmetic.compute(the_layout, global_batch_size=size, micro_batch_size=micro_batch_size)
    if smaller := re.search(r"or train\.micro_batch_size (\d+)", message):
        size = int(smaller[1])
        BatchArithmetic.compute(the_layout, global_batch_size=global_batch_size, micro_batch_size=size)


def test_a_microbatch_of_any_size_is_refused_at_once() -> None:
    layout = GTPParallelLayout.resolve(world_size=2)
    with pytest.raises(UserError, match=r"; try 2\d+, or train\.micro_batch_size 4 \("):
        BatchArithmetic.compute(layout, global_batch_size=8, micro_batch_size=10**25)
