"""Layouts that calls are tried on; together they use every axis, in both rank orders."""

from __future__ import annotations

from rankloom.layout import GTPParallelLayout

SETTINGS = {
    "pp": "pipeline_model_parallel_size",
    "tp": "tensor_model_parallel_size",
    "w": "tensor_parallel_num_weight_shards",
    "q": "tensor_parallel_num_sequence_shards",
    "cp": "context_parallel_size",
}


def layout_of(world_size: int, **given: int | str) -> GTPParallelLayout:
    settings = {SETTINGS.get(name, name): value for name, value in given.items()}
    return GTPParallelLayout.resolve(world_size=world_size, **settings)  # type: ignore[arg-type]


L24 = layout_of(24, tp=4, w=12)
TRAP = layout_of(8, w=2, cp=2)  # a plain reshape of its ranks does not give the lanes
LAYOUTS = {
    "one rank": layout_of(1),
    "copies": layout_of(8),
    "6 lanes of TP 4": L24,
    "weights and context": TRAP,
    "every axis": layout_of(64, tp=2, w=16, q=4, cp=2, pp=2),
    "every axis, other order": layout_of(64, tp=2, w=16, q=4, cp=2, pp=2, rank_order="tp-cp-gtp-dp-pp"),
    "one lane": layout_of(128, w=64, q=64, cp=2),
    "later ranks": layout_of(24, tp=4, w=12, rank_offset=8),
}
