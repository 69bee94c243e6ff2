"""A layout in one sentence."""

from __future__ import annotations

from rankloom.layout import GTPParallelLayout

__all__ = ["headline"]


def headline(layout: GTPParallelLayout) -> str:
    """The essentials in words.

    >>> headline(GTPParallelLayout.resolve(
    ...     world_size=8, tensor_parallel_num_weight_shards=4, tensor_parallel_num_sequence_shards=2,
    ...     context_parallel_size=2))
    '8 GPUs hold 2 copies of the weights, each cut 4 ways, and train on 2 lanes; each row is cut over 4 GPUs.'
    """
    gpus = _count(layout.world_size, "GPU")
    verb, trains = ("holds", "trains") if layout.world_size == 1 else ("hold", "train")
    lanes = _count(layout.batch_parallel_size, "lane")
    return f"{gpus} {verb} {_copies(layout)}, and {trains} on {lanes}; {_rows(layout)}."


def _copies(layout: GTPParallelLayout) -> str:
    shards, stages = layout.tensor_parallel_num_weight_shards, layout.pipeline_model_parallel_size
    replicas = layout.num_weight_replicas
    cuts = [f"cut {shards:,} ways"] * (shards > 1) + [f"spread over {stages:,} pipeline stages"] * (
        stages > 1
    )
    if not cuts:
        return "1 whole copy of the weights" if replicas == 1 else f"{replicas:,} whole copies of the weights"
    return (
        f"{_count(replicas, 'copy', 'copies')} of the weights, {'each ' * (replicas > 1)}{' and '.join(cuts)}"
    )


def _rows(layout: GTPParallelLayout) -> str:
    context, tp = layout.runtime_context_parallel_size, layout.tensor_model_parallel_size
    if context > 1 and tp > 1:
        return f"each row is cut into {context:,} parts, each worked on by {tp:,} GPUs together"
    if context > 1:
        return f"each row is cut over {context:,} GPUs"
    if tp > 1:
        return f"each row is worked on by {tp:,} GPUs together"
    return "no row is cut"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
