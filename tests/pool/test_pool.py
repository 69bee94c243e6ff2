from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.pool import RanksFailed

Ranks = Callable[..., list[Any]]


def sum_of_ranks(rank: int, world_size: int, offset: int) -> tuple[float, int]:
    import torch
    import torch.distributed as dist

    value = torch.tensor([float(rank + offset)])
    dist.all_reduce(value)
    return value.item(), torch.get_num_threads()


def raise_on_one(rank: int, world_size: int, culprit: int) -> None:
    import torch.distributed as dist

    if rank == culprit:
        raise ValueError(f"bad number {rank}")
    dist.barrier()


def die_on_one(rank: int, world_size: int, culprit: int) -> None:
    import torch.distributed as dist

    if rank == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def sleep_on_one(rank: int, world_size: int, culprit: int) -> None:
    if rank == culprit:
        time.sleep(60)


def leave_state(rank: int, world_size: int) -> int:
    import torch.distributed as dist

    dist.new_group(list(range(world_size)))
    return dist.get_world_size()


def unpicklable(rank: int, world_size: int) -> Any:
    return lambda: None


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_world_size_has_its_own_process_group(ranks: Ranks, world_size: int) -> None:
    expected = sum(range(world_size)) + 10.0 * world_size
    assert ranks(world_size, sum_of_ranks, 10) == [(expected, 1)] * world_size


def test_cases_do_not_share_groups(ranks: Ranks) -> None:
    assert ranks(4, leave_state) == [4] * 4
    assert ranks(2, leave_state) == [2] * 2


def test_a_raising_rank_comes_back_with_its_traceback(ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match="rank 2: raised ValueError: bad number 2") as caught:
        ranks(4, raise_on_one, 2)
    assert next(iter(caught.value.failures)) == 2
    assert "in raise_on_one" in caught.value.failures[2]
    assert ranks(4, sum_of_ranks, 0) == [(6.0, 1)] * 4


def test_a_killed_rank_names_itself(ranks: Ranks) -> None:
    with pytest.raises(RanksFailed) as caught:
        ranks(4, die_on_one, 1)
    assert caught.value.failures[1].startswith("was ended by SIGKILL")
    assert next(iter(caught.value.failures)) == 1
    assert ranks(4, sum_of_ranks, 0) == [(6.0, 1)] * 4


def test_a_hung_rank_names_itself_and_its_place(ranks: Ranks) -> None:
    with pytest.raises(RanksFailed) as caught:
        ranks(2, sleep_on_one, 1, timeout_s=0.5)
    assert list(caught.value.failures) == [1]
    assert "has not answered after 0.5 s" in caught.value.failures[1]
    assert "in sleep_on_one" in caught.value.failures[1]
    assert ranks(2, sum_of_ranks, 0) == [(1.0, 1)] * 2


def test_a_result_that_cannot_be_pickled_says_so(ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match="cannot be pickled"):
        ranks(1, unpicklable)
