"""With how many ranks a run may go on when some are lost. A pure function of its settings; no Ray."""

from __future__ import annotations

from dataclasses import dataclass

from rankloom.config import ResolvedConfig, resolve
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout

__all__ = ["WorldSize", "largest_world_size"]

WORLD_SIZE = "cluster.world_size"


@dataclass(frozen=True)
class WorldSize:
    """A number of ranks the run may have; ``resolved`` is its config with them, ``reason`` says why it is
    this one."""

    world_size: int
    resolved: ResolvedConfig
    reason: str


def largest_world_size(
    resolved: ResolvedConfig, *, present: int, min_world_size: int | None = None
) -> WorldSize:
    """The most ranks, no more than now and than there is room for (``present``), with which every setting but
    the world size stays as it is and the config resolves: TP, W, Q, CP and PP divide the world, the global
    batch divides over the lanes, and whatever else is refused when a config is read is not.

    ``min_world_size``: no fewer than these; without it, no fewer than now. Raises UserError where there is no
    such number, with those that were tried and why they did not do.
    """
    layout = resolved.layout
    least = layout.world_size if min_world_size is None else min_world_size
    most = min(present, layout.world_size)
    step = layout.world_size // layout.data_parallel_size
    refused: list[str] = []
    for world_size in range(most // step * step, max(least, 1) - 1, -step):
        try:
            found = resolve(resolved.to_mapping(), cli={WORLD_SIZE: world_size}, origin=resolved.origin)
        except UserError as error:
            refused.append(f"{world_size}: {error}")
            continue
        return WorldSize(world_size, found, _reason(found, present=present, refused=refused))
    raise UserError("\n".join([_none(layout, present=present, least=least, step=step), *refused]))


def _reason(found: ResolvedConfig, *, present: int, refused: list[str]) -> str:
    layout, batch = found.layout, found.batch
    lanes = f"{batch.num_lanes} lane{'s' * (batch.num_lanes > 1)}"
    text = (
        f"{layout.world_size} ranks of {present} there is room for: a multiple of {_step_text(layout)}; "
        f"global_batch_size {batch.global_batch_size} = micro_batch_size {batch.micro_batch_size} x {lanes} "
        f"x {batch.num_microbatches} microbatches"
    )
    return "; ".join([text, *(f"not {line.splitlines()[0]}" for line in refused)])


def _none(layout: GTPParallelLayout, *, present: int, least: int, step: int) -> str:
    room = f"there is room for {present} rank{'s' * (present != 1)}"
    if present < least:
        least_text = f"min_world_size {least}" if least != layout.world_size else f"{WORLD_SIZE} {least}"
        return f"{room}, and the run needs {least_text}: nothing smaller is allowed"
    return (
        f"{room}, and no number of ranks from {least} to {min(present, layout.world_size)} will do: it has "
        f"to be a multiple of {_step_text(layout)}"
    )


def _step_text(layout: GTPParallelLayout) -> str:
    """What one more replica of everything takes."""
    weights, context = layout.tensor_parallel_num_weight_shards, layout.context_parallel_size
    stages = layout.pipeline_model_parallel_size
    return f"{weights * context * stages} = weight shards {weights} x context {context} x pipeline {stages}"
