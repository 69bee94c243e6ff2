"""What every rank hands to its sends equals the plan, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankloom.config import resolve
from rankloom.plan import ModelPlan, ModelSpec, bytes_by_group, step_collectives
from rankloom.train.assemble import step_shape
from tests.runtime.runs import TINY, run, settings, write_chats

W, Q, CP, TP = (
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "tensor_model_parallel_size",
)
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (4, {W: 4}),
    (4, {W: 2, Q: 2, CP: 2}),
    (4, {TP: 2, W: 4}),
    (4, {TP: 2, W: 4, Q: 4}),
    (4, {TP: 2, "sequence_parallel": False}),
    (8, {W: 4, Q: 2, CP: 2}),
    (8, {TP: 2, W: 4, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "checkpointing": {"train": {"gradient_checkpointing": True}},
    "bfloat16_tied_biases": {
        "model": {
            "dtype": "bfloat16",
            "config": {**TINY, "tie_word_embeddings": True, "attention_bias": True},
        }
    },
}


CASES = [
    pytest.param(
        *where,
        variant,
        marks=pytest.mark.long if variant and where not in LAYOUTS[-2:] else (),
        id=f"{name}-{where}",
    )
    for where in LAYOUTS
    for name, variant in VARIANTS.items()
]


@pytest.mark.parametrize(("world", "parallel", "variant"), CASES)
def test_sent_bytes_equal_the_plan(
    ranks: Any, tmp_path: Path, world: int, parallel: dict[str, Any], variant: dict[str, Any]
) -> None:
    write_chats(tmp_path / "chats.jsonl")
    config = settings(tmp_path, parallel=parallel, world_size=world, **variant)
    config["train"] |= {"max_steps": 2}
    resolved = resolve(config)
    plan = ModelPlan.build(ModelSpec.from_config(config["model"]["config"]), resolved.layout)
    records = step_collectives(plan, step_shape(resolved))
    for rank, rows in enumerate(ranks(world, run, config)):
        for row in rows:
            assert row["comm_bytes"] == bytes_by_group(records, plan, rank), (rank, row["step"])


def test_every_kind_of_collective_is_planned_somewhere(tmp_path: Path) -> None:
    kinds = set()
    for world, parallel in LAYOUTS:
        resolved = resolve(settings(tmp_path, parallel=parallel, world_size=world))
        plan = ModelPlan.build(ModelSpec.from_config(TINY), resolved.layout)
        kinds |= {(r.group, r.kind) for r in step_collectives(plan, step_shape(resolved))}
    assert {group for group, _ in kinds} == {
        "tp",
        "gtp_remat",
        "replica",
        "gtp_remat_replica",
        "context",
        "lane",
        "world",
    }
