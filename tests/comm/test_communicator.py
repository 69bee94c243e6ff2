"""Groups are compared with the layout before anything is trained; several layouts live in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankloom.comm import Communicator, Group
from rankloom.errors import RunError
from rankloom.layout import GTPParallelLayout

W, CP, TP = "tensor_parallel_num_weight_shards", "context_parallel_size", "tensor_model_parallel_size"
CPU = torch.device("cpu")


def communicator(
    rank: int, settings: dict[str, Any], world_size: int = 4, *, offset: int = 0
) -> Communicator:
    layout = GTPParallelLayout.resolve(world_size=world_size, rank_offset=offset, **settings)
    return Communicator(layout, rank, device=CPU, timeout_s=20)


def error_of(make: Any) -> str:
    try:
        make()
    except RunError as error:
        return str(error)
    return ""


def one_rank_has_another_layout(
    rank: int, world_size: int, settings: dict[str, Any], other: dict[str, Any]
) -> str:
    return error_of(lambda: communicator(rank, other if rank == 1 else settings, world_size).verify())


@pytest.mark.parametrize(
    ("settings", "other", "difference"),
    [
        ({W: 4}, {W: 2}, "gtp_batch 2 there, 4 here; dp 2 there, 1 here"),
        ({W: 2, CP: 2}, {W: 2}, "cp 1 there, 2 here; dp 2 there, 1 here"),
        ({W: 2, CP: 2}, {W: 2, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}, "another rank order"),
        ({TP: 2}, {TP: 2, "sequence_parallel": False}, "sequence_parallel 0 there, 1 here"),
    ],
    ids=str,
)
def test_a_rank_with_another_layout_is_named(
    ranks: Any, settings: dict[str, Any], other: dict[str, Any], difference: str
) -> None:
    errors = ranks(4, one_rank_has_another_layout, settings, other, timeout_s=15)
    for rank in (0, 2, 3):
        assert errors[rank].startswith(
            f"rank 1 was started with another layout than rank {rank} ({difference})"
        )
    assert errors[1].startswith("rank 0 was started with another layout than rank 1 (")


def the_same_groups_in_another_order(rank: int, world_size: int) -> str:
    """With two ranks the two rank orders have the same groups: harmless, and yet another layout."""
    order = "tp-cp-gtp-dp-pp" if rank == 1 else "tp-gtp-cp-dp-pp"
    return error_of(lambda: communicator(rank, {W: 2, "rank_order": order}, world_size).verify())


def test_another_rank_order_with_the_same_groups_is_still_named(ranks: Any) -> None:
    first, second = ranks(2, the_same_groups_in_another_order, timeout_s=15)
    assert first.startswith("rank 1 was started with another layout than rank 0 (another rank order)")
    assert second.startswith("rank 0 was started with another layout than rank 1 (another rank order)")


def a_group_with_its_members_turned(rank: int, world_size: int) -> str:
    """A group that disagrees with the layout, as from a place that makes groups by its own arithmetic."""
    comm = communicator(rank, {W: 4})
    right = comm["gtp_remat"]
    turned = (*right.ranks[1:], right.ranks[0])
    comm._groups["gtp_remat"] = Group("gtp_remat", turned, right.index, right.activity, right.transport)
    return error_of(comm.verify)


def test_a_group_unlike_the_layout_is_named(ranks: Any) -> None:
    errors = ranks(4, a_group_with_its_members_turned)
    for rank, error in enumerate(errors):
        assert error == (
            f"rank {rank}: its gtp_remat group holds rank 0 where the layout has rank 1 "
            "(group [1, 2, 3, 0]); "
            + GTPParallelLayout.resolve(world_size=4, **{W: 4}).coords(rank).describe()
        )


def sums_in_two_layouts(rank: int, world_size: int) -> list[float]:
    first, second = communicator(rank, {W: 2}), communicator(rank, {TP: 2, W: 4})
    first.verify()
    second.verify()
    value = torch.tensor([2.0**rank])
    sums = []
    for comm, name in ((first, "gtp_remat"), (second, "gtp_remat"), (second, "tp"), (first, "replica")):
        sums.append(comm[name].all_reduce(value, "sum").item())
    first.close()
    sums.append(second["world"].all_reduce(value, "sum").item())
    second.close()
    return sums


def test_two_layouts_live_in_one_process(ranks: Any) -> None:
    assert ranks(4, sums_in_two_layouts) == [
        [3.0, 5.0, 3.0, 5.0, 15.0],
        [3.0, 10.0, 3.0, 10.0, 15.0],
        [12.0, 5.0, 12.0, 5.0, 15.0],
        [12.0, 10.0, 12.0, 10.0, 15.0],
    ]


def halves_then_the_whole(rank: int, world_size: int) -> tuple[float, float]:
    """Two jobs with different layouts on the halves of the world, then one on all of it."""
    half = rank // 2
    own = communicator(rank, {W: 2 - half}, 2, offset=2 * half)
    own.verify()
    whole = communicator(rank, {W: 4})
    whole.verify()
    value = torch.tensor([2.0**rank])
    return own["world"].all_reduce(value, "sum").item(), whole["world"].all_reduce(value, "sum").item()


def test_layouts_on_parts_of_the_world(ranks: Any) -> None:
    assert ranks(4, halves_then_the_whole, timeout_s=15) == [
        (3.0, 15.0),
        (3.0, 15.0),
        (12.0, 15.0),
        (12.0, 15.0),
    ]


def several_groups_of_one_rank_set(rank: int, world_size: int) -> tuple[int, dict[str, int]]:
    comm = communicator(rank, {W: 4})
    comm["gtp_remat"].stack(torch.zeros(1), "x")
    return len(comm._process_groups), comm.bytes_sent()


def test_a_rank_set_has_one_process_group_and_each_name_its_own_bytes(ranks: Any) -> None:
    for made, sent in ranks(4, several_groups_of_one_rank_set):
        assert made == 1
        assert sent["gtp_remat"] == 12
        assert sent["gtp_remat_replica"] == sent["tp"] == sent["replica"] == sent["context"] == 0
