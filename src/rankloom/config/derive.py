"""Values nobody set, filled in from those that are set; and settings that do not combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TypeVar

from rankloom.config.batch import sequence_multiple
from rankloom.config.schema import (
    CheckpointSection,
    ClusterSection,
    DataSection,
    LoggingSection,
    OptimizerSection,
    ParallelSection,
    ScheduleSection,
    Section,
    TrainSection,
)
from rankloom.layout import GTPParallelLayout
from rankloom.layout.topology import DEFAULT_NVLINK_DOMAIN_SIZE

__all__ = ["fill_cluster", "fill_data", "fill_logging", "fill_parallel", "fill_schedule", "schedule_problems"]

AnySection = TypeVar("AnySection", bound=Section)


def _fill(section: AnySection, values: Mapping[str, object]) -> AnySection:
    """The section with these values where it has null."""
    unset = {key: value for key, value in values.items() if getattr(section, key) is None}
    return section.model_copy(update=unset)


def fill_parallel(parallel: ParallelSection, layout: GTPParallelLayout) -> ParallelSection:
    """Sequence parallelism, W and Q as the layout derived them."""
    return _fill(parallel, {key: getattr(layout, key) for key in ParallelSection.model_fields})


def fill_data(data: DataSection, layout: GTPParallelLayout, *, length_is_set: bool) -> DataSection:
    """A default row length is rounded up to what the layout can cut; one that was set is left alone."""
    if length_is_set:
        return data
    multiple = sequence_multiple(layout)
    return data.model_copy(update={"max_seq_length": -(-data.max_seq_length // multiple) * multiple})


def fill_schedule(schedule: ScheduleSection, train: TrainSection) -> ScheduleSection:
    """The schedule ends with the run, where its length is known before the data is."""
    if train.max_steps is None:
        return schedule
    return _fill(schedule, {"decay_samples": train.max_steps * train.global_batch_size})


def fill_cluster(cluster: ClusterSection) -> ClusterSection:
    """NVLink reaches as far as a node, where nothing else is said; domains that are listed have no size."""
    if cluster.nvlink_domains is not None:
        return cluster
    return _fill(cluster, {"nvlink_domain_size": cluster.gpus_per_node or DEFAULT_NVLINK_DOMAIN_SIZE})


def fill_logging(logging: LoggingSection, checkpoint: CheckpointSection) -> LoggingSection:
    return _fill(logging, {"metrics": str(PurePath(checkpoint.dir) / "metrics.jsonl")})


def schedule_problems(
    schedule: ScheduleSection, optimizer: OptimizerSection
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(message, keys it is about) for what cannot be meant; ``schedule`` as written, nothing derived yet."""
    if schedule.min_lr > optimizer.lr:
        message = (
            f"schedule.min_lr {schedule.min_lr:g} is larger than optimizer.lr {optimizer.lr:g}; "
            f"try {optimizer.lr:g} or less"
        )
        yield message, ("schedule.min_lr", "optimizer.lr")
    decay = schedule.decay_samples
    if schedule.decay != "constant" and decay is not None and schedule.warmup_samples > decay:
        message = (
            f"schedule.warmup_samples {schedule.warmup_samples} is larger than schedule.decay_samples "
            f"{decay}: the schedule would end before its warm-up; decay_samples counts from the first sample"
        )
        yield message, ("schedule.warmup_samples", "schedule.decay_samples")
