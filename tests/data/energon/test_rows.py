"""Which rows there are: each sample once an epoch, and the same global batches for any number of lanes."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from collections import defaultdict

import numpy as np
import torch

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.lanes import VirtualLanes, num_samples
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import VirtualLane
from rankloom.errors import UserError
from rankloom.records import ChatRecord, chat_of
from rankloom.records.energon import EnergonData
from tests.data.energon.datasets import NUM_SAMPLES, chat
from tests.data.energon.runs import SETTINGS, Run, numbers

METHODS = ("none", "greedy", "first_fit_decreasing")


def virtual(data: EnergonData, encoder: ChatEncoder, number: int, of: int, **settings: object) -> VirtualLane:
    made = RowSettings(**({"max_seq_length": 64, "packing_window": 8} | settings))  # type: ignore[arg-type]
    return VirtualLane(data, number=number, num_lanes=of, settings=made, seed=0, encoder=encoder)


def epochs(lane: VirtualLane, count: int) -> dict[int, list[tuple[int, ...]]]:
    """The samples of the rows of the first epochs."""
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    while (row := lane.next_row()).epoch < count:
        found[row.epoch].append(numbers(row))
    return found


@pytest.mark.parametrize("packing", METHODS)
def test_each_sample_is_in_one_row_an_epoch(data: EnergonData, encoder: ChatEncoder, packing: str) -> None:
    by_epoch: dict[int, list[int]] = defaultdict(list)
    for number in range(8):
        for epoch, rows in epochs(virtual(data, encoder, number, 8, packing=packing), 3).items():
            by_epoch[epoch] += [sample for row in rows for sample in row]
    assert {epoch: sorted(samples) for epoch, samples in by_epoch.items()} == {
        epoch: list(range(NUM_SAMPLES)) for epoch in range(3)
    }


def test_parts_are_the_same_in_every_epoch_and_their_order_is_not(
    data: EnergonData, encoder: ChatEncoder
) -> None:
    first, second = epochs(virtual(data, encoder, 3, 8, packing="none"), 2).values()
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_seed_decides_the_order(data: EnergonData, encoder: ChatEncoder) -> None:
    orders = [Run(data, encoder, num_lanes=1, seed=seed).numbers(16) for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("packing", METHODS)
def test_global_batches_do_not_depend_on_the_lanes(
    data: EnergonData, encoder: ChatEncoder, packing: str
) -> None:
    """Batches of 24 rows, no multiple of 16 virtual lanes, over more than an epoch."""
    settings = RowSettings(max_seq_length=64, packing=packing, packing_window=8)  # type: ignore[arg-type]
    steps = 6
    alone, *others = (
        [
            run.numbers(24)
            for run in [Run(data, encoder, num_lanes=lanes, num_virtual_lanes=16, settings=settings)]
            for _ in range(steps)
        ]
        for lanes in (1, 2, 4, 8)
    )
    assert others == [alone] * 3
    assert sum(len(row) for batch in alone for row in batch) > NUM_SAMPLES


def test_row_r_comes_from_virtual_lane_r_mod_v(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    lanes = [virtual(jsonl, encoder, number, 4) for number in range(4)]
    expected = [numbers(lanes[row % 4].next_row()) for row in range(40)]
    assert Run(jsonl, encoder, num_lanes=2, num_virtual_lanes=4).numbers(40) == expected


@pytest.mark.parametrize("packing", METHODS[1:])
def test_rows_hold_the_tokens_of_their_chats(data: EnergonData, encoder: ChatEncoder, packing: str) -> None:
    for row in [virtual(data, encoder, 0, 2, packing=packing).next_row() for _ in range(3)]:
        assert sum(len(found.ids) for found in row.chats) <= 64
        for found in row.chats:
            record = ChatRecord(0, chat_of(chat(found.number)).messages, "test", None)
            ((ids, trained),) = encoder.tokenize([encoder.render(record)])  # type: ignore[misc]
            np.testing.assert_array_equal(found.ids, ids)
            np.testing.assert_array_equal(found.trained, trained)


def test_packing_fills_rows(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    plain, packed = (
        sum(len(rows) for rows in epochs(virtual(jsonl, encoder, 0, 1, packing=packing), 1).values())
        for packing in ("none", "greedy")
    )
    assert plain == NUM_SAMPLES
    assert packed < plain / 2


def test_epochs_count_whole_passes(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    lane = virtual(jsonl, encoder, 1, 8, packing="none")
    size = len(epochs(virtual(jsonl, encoder, 1, 8, packing="none"), 1)[0])
    assert [lane.next_row().epochs for _ in range(2 * size)] == pytest.approx(
        [(row + 1) / size for row in range(2 * size)]
    )


def test_samples_are_counted(data: EnergonData) -> None:
    assert num_samples(data) == NUM_SAMPLES


def test_nothing_is_printed_and_no_random_number_taken(
    data: EnergonData,
    encoder: ChatEncoder,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A model's dropout must not depend on which ranks read data."""
    before = torch.get_rng_state()
    Run(data, encoder, num_lanes=2).numbers(64)
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_lanes_that_do_not_divide_the_virtual_lanes_are_refused(
    jsonl: EnergonData, encoder: ChatEncoder
) -> None:
    with pytest.raises(UserError) as refusal:
        Run(jsonl, encoder, num_lanes=3, num_virtual_lanes=8)
    assert str(refusal.value) == (
        "data.num_virtual_lanes 8 is not a multiple of the layout's 3 lanes; it allows 1, 2, 4, 8. A run "
        "that begins can set it to 6 or 9; one that resumes needs a layout with one of these numbers of lanes"
    )


def test_fewer_samples_than_virtual_lanes_are_refused(data: EnergonData, encoder: ChatEncoder) -> None:
    with pytest.raises(
        UserError, match=r"has 100 samples, fewer than data.num_virtual_lanes 128; .* at most 100"
    ):
        VirtualLanes(
            data, num_virtual_lanes=128, lane=0, num_lanes=2, settings=SETTINGS, seed=0, encoder=encoder
        )
