"""The worked cases: small layouts whose numbers a person can check by hand."""

from __future__ import annotations

import pytest

from rankloom.layout import GTPParallelLayout, from_fold_whole_cp, from_gtp_remat_fold_cp
from tests.layout.brute import ORDERS


def test_24_ranks_tp_4_w_12() -> None:
    layout = GTPParallelLayout.resolve(
        world_size=24, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    )
    assert layout.gtp_remat_size == 3
    assert layout.data_parallel_size == 2
    assert layout.batch_parallel_size == 6
    assert [layout.lane(rank) for rank in layout.ranks] == [rank // 4 for rank in range(24)]
    for rank in layout.ranks:
        at = layout.coords(rank)
        assert at.lane == at.dp * 3 + at.weight_shard


def test_128_ranks_one_lane_weight_groups_in_a_domain_context_over_both() -> None:
    layout = GTPParallelLayout.resolve(
        world_size=128,
        tensor_model_parallel_size=1,
        tensor_parallel_num_weight_shards=64,
        tensor_parallel_num_sequence_shards=64,
        context_parallel_size=2,
    )
    assert layout.data_parallel_size == 1
    assert layout.batch_parallel_size == 1
    assert layout.runtime_context_parallel_size == 128
    assert layout.num_weight_replicas == 2
    for group in layout.weights.groups("tp_gtp_remat"):
        assert len({rank // 64 for rank in group.tolist()}) == 1
    (context,) = layout.tokens.groups("context").tolist()
    assert context == list(range(128))
    assert layout.to_json(nvlink_domain_size=64)["warnings"] == []


def test_w_64_tp_2_with_sequence_parallel_q_16() -> None:
    layout = GTPParallelLayout.resolve(
        world_size=64,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        tensor_parallel_num_weight_shards=64,
        tensor_parallel_num_sequence_shards=16,
    )
    assert layout.gtp_remat_num_sequence_shards == 8
    assert layout.gtp_remat_num_batch_shards == 4


@pytest.mark.parametrize(
    ("sequence_shards", "runtime_cp", "dp", "lanes"), [(2, 2, 4, 4), (1, 1, 4, 8), (None, 1, 4, 8)]
)
def test_8_ranks_w_2(sequence_shards: int | None, runtime_cp: int, dp: int, lanes: int) -> None:
    layout = GTPParallelLayout.resolve(
        world_size=8,
        tensor_parallel_num_weight_shards=2,
        tensor_parallel_num_sequence_shards=sequence_shards,
    )
    assert layout.gtp_remat_num_sequence_shards == (sequence_shards or 1)
    assert layout.runtime_context_parallel_size == runtime_cp
    assert layout.data_parallel_size == dp
    assert layout.batch_parallel_size == lanes


def test_the_demo_layout_has_two_lanes_runtime_cp_4_and_two_replicas() -> None:
    layout = GTPParallelLayout.resolve(
        world_size=8,
        tensor_parallel_num_weight_shards=4,
        tensor_parallel_num_sequence_shards=2,
        context_parallel_size=2,
    )
    assert layout.batch_parallel_size == 2
    assert layout.runtime_context_parallel_size == 4
    assert layout.num_weight_replicas == 2
    assert [layout.lane(rank) for rank in layout.ranks] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert layout.weights.groups("gtp_remat").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout.tokens.groups("context").tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_fold_cp_spelling() -> None:
    translation = from_gtp_remat_fold_cp(
        runtime_context_parallel_size=12, gtp_remat_size=8, tensor_model_parallel_size=2
    )
    assert translation.settings == {
        "tensor_parallel_num_weight_shards": 16,
        "tensor_parallel_num_sequence_shards": 8,  # SP degree 2 * gcd(12, 8)
        "context_parallel_size": 3,
    }
    layout = GTPParallelLayout.resolve(world_size=48, tensor_model_parallel_size=2, **translation.settings)
    assert layout.runtime_context_parallel_size == 12
    assert layout.gtp_remat_size == 8
    assert translation.describe().startswith("--gtp-remat-fold-cp means tensor_parallel_num_weight_shards 16")


@pytest.mark.parametrize(("tp", "remat", "c"), [(1, 2, 2), (2, 3, 4), (2, 1, 2), (1, 4, 1)])
@pytest.mark.parametrize("order", ORDERS)
def test_fold_whole_cp_equals_folding_a_job_numbered_tp_cp_gtp(
    tp: int, remat: int, c: int, order: str
) -> None:
    world = tp * remat * c * 2
    translation = from_fold_whole_cp(
        context_parallel_size=c, gtp_remat_size=remat, tensor_model_parallel_size=tp
    )
    folded = GTPParallelLayout.resolve(
        world_size=world, tensor_model_parallel_size=tp, rank_order=order, **translation.settings
    )
    before = GTPParallelLayout.resolve(
        world_size=world,
        tensor_model_parallel_size=tp,
        tensor_parallel_num_weight_shards=tp * remat,
        context_parallel_size=c,
        rank_order="tp-cp-gtp-dp-pp",
    )
    assert folded.context_parallel_size == 1
    assert folded.gtp_remat_size == remat * c
    for rank in before.ranks:
        old, new = before.coords(rank), folded.coords(rank)
        assert (old.lane, old.context, old.tp) == (new.lane, new.context, new.tp)


def test_without_sequence_parallelism_a_spelling_does_not_count_tp() -> None:
    whole = from_fold_whole_cp(
        context_parallel_size=2, gtp_remat_size=2, tensor_model_parallel_size=2, sequence_parallel=False
    )
    assert whole.tensor_parallel_num_sequence_shards == 2
