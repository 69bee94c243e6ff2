"""The object of ``rankloom layout --json``: its keys and nesting are a promise."""

from __future__ import annotations

import json
from typing import Any

from rankloom.layout import GTPParallelLayout

SIZES = [
    "world_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "runtime_context_parallel_size",
    "data_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "gtp_remat_size",
    "gtp_remat_num_sequence_shards",
    "gtp_remat_num_batch_shards",
    "batch_parallel_size",
    "num_weight_replicas",
]
RANK_KEYS = [
    "rank", "tp", "gtp_seq", "gtp_batch", "cp", "dp", "pp",
    "lane", "context", "weight_shard", "replica", "nvlink_domain",
]  # fmt: skip


def demo() -> GTPParallelLayout:
    return GTPParallelLayout.resolve(
        world_size=8,
        tensor_parallel_num_weight_shards=4,
        tensor_parallel_num_sequence_shards=2,
        context_parallel_size=2,
    )


def test_keys_and_nesting() -> None:
    sources = {"parallel.context_parallel_size": "cli"}
    printed: Any = json.loads(json.dumps(demo().to_json(sources=sources, nvlink_domain_size=4)))
    assert list(printed) == ["sizes", "rank_order", "sources", "ranks", "groups", "warnings"]
    assert list(printed["sizes"]) == SIZES
    assert printed["rank_order"] == "tp-gtp-cp-dp-pp"
    assert printed["sources"] == sources
    assert [list(row) for row in printed["ranks"]] == [RANK_KEYS] * 8
    assert list(printed["groups"]) == ["tp", "pp", "weights", "tokens"]
    assert list(printed["groups"]["weights"]) == ["gtp_remat", "tp_gtp_remat", "replica"]
    assert list(printed["groups"]["tokens"]) == ["context", "batch", "lane"]
    assert printed["warnings"] == []


def test_values() -> None:
    printed: Any = demo().to_json(nvlink_domain_size=4)
    assert printed["ranks"][6] == {
        "rank": 6, "tp": 0, "gtp_seq": 0, "gtp_batch": 1, "cp": 1, "dp": 0, "pp": 0,
        "lane": 1, "context": 2, "weight_shard": 2, "replica": 1, "nvlink_domain": 1,
    }  # fmt: skip
    assert printed["groups"]["tokens"] == {
        "context": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "batch": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "lane": [[0, 1, 4, 5], [2, 3, 6, 7]],
    }
    assert printed["groups"]["weights"]["replica"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert printed["groups"]["tp"] == [[rank] for rank in range(8)]


def test_weight_groups_that_leave_an_nvlink_domain_are_warned_about() -> None:
    wide = GTPParallelLayout.resolve(world_size=16, tensor_parallel_num_weight_shards=16)
    assert wide.to_json(nvlink_domain_size=8)["warnings"] == [
        "1 of 1 tp x gtp_remat groups cross NVLink domains (16 ranks are more than a domain of 8):"
        " for example ranks 0-15"
    ]
    shifted = GTPParallelLayout.resolve(world_size=8, tensor_parallel_num_weight_shards=4, rank_offset=2)
    assert shifted.to_json(nvlink_domain_size=4)["warnings"] == [
        "2 of 2 tp x gtp_remat groups cross NVLink domains (groups of 4 ranks are not lined up with domains"
        " of 4): for example ranks 2-5"
    ]
    tall = GTPParallelLayout.resolve(world_size=6, tensor_model_parallel_size=3)
    assert tall.to_json(nvlink_domain_size=4)["warnings"] == [
        "1 of 2 tp groups cross NVLink domains (groups of 3 ranks are not lined up with domains of 4):"
        " for example ranks 3-5"
    ]
