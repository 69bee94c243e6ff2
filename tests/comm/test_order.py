"""Ranks that launch the exchanges of a group in different orders: no data is ever taken for another's."""

from __future__ import annotations

from typing import Any

import torch

from rankloom.comm import Communicator
from rankloom.comm.diagnosis import RankState, diagnose
from rankloom.layout import GTPParallelLayout

LAYOUT = GTPParallelLayout.resolve(world_size=2, tensor_parallel_num_weight_shards=2)


def communicator(rank: int, *, timeout_s: float) -> Communicator:
    return Communicator(LAYOUT, rank, device=torch.device("cpu"), timeout_s=timeout_s)


def launched_together(rank: int, world_size: int) -> dict[str, list[float]]:
    """Both are under way before either is waited for; rank 1 launches them the other way round."""
    group = communicator(rank, timeout_s=10)["gtp_remat"]
    fulls = {"gather first": torch.zeros(2), "gather second": torch.zeros(2)}
    order = ["gather first", "gather second"] if rank == 0 else ["gather second", "gather first"]
    mine = {"gather first": 1.0, "gather second": 100.0}
    for _ in range(3):
        pending = [
            group.all_gather([(fulls[what], torch.tensor([mine[what] + rank]))], what) for what in order
        ]
        for p in pending:
            p.wait()
    return {what: full.tolist() for what, full in fulls.items()}


def test_data_is_never_swapped(ranks: Any) -> None:
    for result in ranks(2, launched_together):
        assert result == {"gather first": [1.0, 2.0], "gather second": [100.0, 101.0]}


def one_after_the_other(rank: int, world_size: int) -> tuple[list[float], dict[str, Any], str]:
    """Each rank waits for its first exchange before it launches the other's."""
    comm = communicator(rank, timeout_s=1.0)
    full, error = torch.full((2,), -1.0), ""
    what = "gather first" if rank == 0 else "gather second"
    pending = comm["gtp_remat"].all_gather([(full, torch.tensor([float(rank)]))], what)
    snapshot = {}
    try:
        with comm.activity.waiting("gtp_remat", what, 1):
            snapshot = comm.activity.snapshot()
        pending.wait()
    except RuntimeError as raised:
        error = str(raised)
    return full.tolist(), snapshot, error


def test_waiting_for_different_exchanges_hangs_and_is_named(ranks: Any) -> None:
    results = ranks(2, one_after_the_other, timeout_s=20)
    for rank, (full, _, error) in enumerate(results):
        assert full[1 - rank] == -1.0
        assert "imed out" in error or "losed by peer" in error
    states = [RankState(rank, snapshot) for rank, (_, snapshot, _) in enumerate(results)]
    report = diagnose(states, LAYOUT, timeout_s=1.0)
    assert "number 1 of gtp_remat is gather first on rank 0 but gather second on rank 1" in report


def groups_of_the_same_ranks(rank: int, world_size: int) -> list[list[float]]:
    """gtp_remat, gtp_remat x replica and world are the same two ranks here."""
    comm = communicator(rank, timeout_s=10)
    names = ["gtp_remat", "gtp_remat_replica", "world"]
    fulls = {name: torch.zeros(2) for name in names}
    pending = [
        comm[name].all_gather([(fulls[name], torch.tensor([names.index(name) + rank / 2]))], "gather")
        for name in (names if rank == 0 else names[::-1])
    ]
    for p in pending:
        p.wait()
    return [full.tolist() for full in fulls.values()]


def test_groups_of_the_same_ranks_do_not_mix(ranks: Any) -> None:
    assert ranks(2, groups_of_the_same_ranks) == [[[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]] * 2
