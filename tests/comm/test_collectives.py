"""Every collective of a group against the same sums in one process, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankloom.comm import Communicator, Group
from rankloom.layout import GTPParallelLayout

Results = dict[str, Any]
SIZES = (1, 2, 3, 4)
NUMEL = 7  # of a member's chunk; divisible by no group size


def values(member: int, numel: int, *, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
    """What ``member`` brings: numbers of very different size, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(100 * salt + member)
    scale = 10.0 ** torch.randint(-4, 5, (numel,), generator=generator)
    return (torch.randn(numel, generator=generator) * scale).to(dtype)


def in_member_order(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part
    return total


def communicator(rank: int, world_size: int, **settings: Any) -> Communicator:
    layout = GTPParallelLayout.resolve(world_size=world_size, **settings)
    return Communicator(layout, rank, device=torch.device("cpu"), timeout_s=30)


def every_collective(rank: int, n: int) -> Results:
    comm = communicator(rank, n, tensor_parallel_num_weight_shards=n)
    group = comm["gtp_remat"]
    results = _gathers(group, rank, n) | _scatters(group, rank, n)
    results["all_reduce"] = [
        group.all_reduce(values(rank, numel, dtype=dtype).view(shape), "sum")
        for numel, shape in ((1, (1,)), (5, (5,)), (12, (3, 4)), (35, (5, 7)))
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    ]
    results["sum_small"] = group.sum_small(values(rank, 3, dtype=torch.float64), "sum")
    results["broadcast"] = []
    for root in range(n):
        tensor = values(rank, NUMEL, salt=root)
        group.broadcast(tensor, "copy", root=root).wait()
        results["broadcast"].append(tensor)
    return results


def _gathers(group: Group, rank: int, n: int) -> Results:
    full, apart = torch.empty(n, NUMEL), torch.empty(n * 3, dtype=torch.bfloat16)
    full[group.index] = values(rank, NUMEL)  # in place: a member's own part is a chunk of the result
    pending = group.all_gather(
        [(full, full[group.index]), (apart, values(rank, 3, dtype=torch.bfloat16))], "gather"
    )
    pending.wait()
    pending.wait()  # once is enough, twice is allowed
    return {"all_gather": (full, apart), "stack": group.stack(values(rank, 6).view(2, 3), "stack")}


def _scatters(group: Group, rank: int, n: int) -> Results:
    results: Results = {}
    for accumulate in (False, True):
        total, wide = torch.full((NUMEL,), 0.5), torch.full((2, 2), 0.25)
        mine, bf16 = values(rank, n * NUMEL), values(rank, n * 4, dtype=torch.bfloat16)
        before = mine.clone()
        group.reduce_scatter([(total, mine), (wide, bf16)], "sum", accumulate=accumulate).wait()
        assert torch.equal(mine, before)
        results[f"reduce_scatter {accumulate}"] = (total, wide)
    return results


@pytest.mark.parametrize("n", SIZES)
def test_collectives_equal_one_process_bit_by_bit(ranks: Any, n: int) -> None:
    members = range(n)
    for rank, got in enumerate(ranks(n, every_collective)):
        assert torch.equal(got["all_gather"][0], torch.stack([values(m, NUMEL) for m in members]))
        bf16 = torch.cat([values(m, 3, dtype=torch.bfloat16) for m in members])
        assert torch.equal(got["all_gather"][1], bf16)
        assert torch.equal(got["stack"], torch.stack([values(m, 6).view(2, 3) for m in members]))
        small = in_member_order([values(m, 3, dtype=torch.float64) for m in members], torch.float64)
        assert torch.equal(got["sum_small"], small)
        for root in members:
            assert torch.equal(got["broadcast"][root], values(root, NUMEL, salt=root))
        for accumulate, first, second in ((False, 0.0, 0.0), (True, 0.5, 0.25)):
            total, wide = got[f"reduce_scatter {accumulate}"]
            assert torch.equal(total, chunk_sum(n, rank, NUMEL, first, torch.float32))
            assert torch.equal(wide.flatten(), chunk_sum(n, rank, 4, second, torch.bfloat16))


def chunk_sum(n: int, rank: int, numel: int, start: float, dtype: torch.dtype) -> Tensor:
    """The sum, in fp32, that member ``rank`` receives: added to ``start`` where that is not 0."""
    parts = [values(m, n * numel, dtype=dtype).view(n, -1)[rank].float() for m in range(n)]
    return in_member_order(([torch.full((numel,), start)] if start else []) + parts, torch.float32)


@pytest.mark.parametrize("n", SIZES)
def test_all_reduce_sums_odd_sizes_and_bf16_in_fp32(ranks: Any, n: int) -> None:
    for got in ranks(n, every_collective):
        at = iter(got["all_reduce"])
        for numel, shape in ((1, (1,)), (5, (5,)), (12, (3, 4)), (35, (5, 7))):
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                wide = torch.float64 if dtype is torch.float64 else torch.float32
                want = in_member_order([values(m, numel, dtype=dtype) for m in range(n)], wide).to(dtype)
                assert torch.equal(next(at), want.view(shape)), (numel, dtype)


def small_parts_that_bf16_would_lose(rank: int, n: int) -> tuple[Tensor, Tensor]:
    group = communicator(rank, n, tensor_parallel_num_weight_shards=n)["gtp_remat"]
    mine = torch.full((n,), 1.0 if rank == 0 else 2.0**-9, dtype=torch.bfloat16)
    total = torch.empty(1)
    group.reduce_scatter([(total, mine)], "sum").wait()
    return total, group.all_reduce(mine, "sum")


def test_a_sum_of_bf16_is_kept_in_fp32(ranks: Any) -> None:
    for scattered, reduced in ranks(8, small_parts_that_bf16_would_lose, timeout_s=60):
        assert scattered.item() == 1.013671875
        assert reduced.tolist() == [1.015625] * 8  # the nearest bf16; adding in bf16 gives 1.0


def the_same_sums_again(rank: int, n: int) -> list[Tensor]:
    group = communicator(rank, n, tensor_parallel_num_weight_shards=n)["gtp_remat"]
    return [group.all_reduce(values(rank, 1001), "sum") for _ in range(20)]


def test_repeated_sums_are_the_same_bits_on_all_members(ranks: Any) -> None:
    results = ranks(3, the_same_sums_again)
    first = results[0][0]
    assert all(torch.equal(total, first) for member in results for total in member)


def bytes_of_each(rank: int, n: int) -> dict[str, int]:
    group = communicator(rank, n, tensor_parallel_num_weight_shards=n)["gtp_remat"]
    sent: dict[str, int] = {}

    def count(name: str) -> None:
        sent[name] = group.bytes_sent - sum(sent.values())

    group.all_gather([(torch.empty(n * 5), torch.zeros(5))], "x").wait()
    count("all_gather")
    group.reduce_scatter([(torch.zeros(5), torch.zeros(n * 5, dtype=torch.bfloat16))], "x").wait()
    count("reduce_scatter")
    group.all_reduce(torch.zeros(5), "x")
    count("all_reduce")
    group.sum_small(torch.zeros(2, dtype=torch.float64), "x")
    count("sum_small")
    group.broadcast(torch.zeros(5), "x").wait()
    count("broadcast")
    return sent


@pytest.mark.parametrize("n", [1, 4])
def test_bytes_are_the_least_possible(ranks: Any, n: int) -> None:
    for rank, sent in enumerate(ranks(n, bytes_of_each)):
        others = n - 1
        assert sent == {
            "all_gather": others * 5 * 4,
            "reduce_scatter": others * 5 * 2,
            "all_reduce": 2 * others * 2 * 4,  # 5 elements are padded to 4 x 2
            "sum_small": others * 2 * 8,
            "broadcast": others * 5 * 4 if rank == 0 else 0,
        }
