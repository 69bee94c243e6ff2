"""Values nobody set, filled in from those that are set; and settings that do not combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TypeVar

from rankloom.config.batch import sequence_multiple
from rankloom.config.energon import ENERGON, PACKING_WINDOW
from rankloom.config.rampup import BatchSizes
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
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.layout.topology import DEFAULT_NVLINK_DOMAIN_SIZE

__all__ = ["fill_cluster", "fill_data", "fill_logging", "fill_parallel", "fill_schedule", "schedule_problems"]

SCHEDULE_PARTS = ("warmup", "decay", "wsd_decay")
AnySection = TypeVar("AnySection", bound=Section)


def _fill(section: AnySection, values: Mapping[str, object]) -> AnySection:
    """The section with these values where it has null."""
    unset = {key: value for key, value in values.items() if getattr(section, key) is None}
    return section.model_copy(update=unset)


def fill_parallel(parallel: ParallelSection, layout: GTPParallelLayout) -> ParallelSection:
    """Sequence parallelism, W and Q as the layout derived them."""
    return _fill(parallel, {key: getattr(layout, key) for key in ParallelSection.model_fields})


def fill_window(data: DataSection, *, window_is_set: bool) -> DataSection:
    """A default window is smaller where each virtual lane has one."""
    if window_is_set or data.source != ENERGON:
        return data
    return data.model_copy(update={"packing_window": PACKING_WINDOW})


def fill_data(data: DataSection, layout: GTPParallelLayout, *, length_is_set: bool) -> DataSection:
    """A default row length is rounded up to what the layout can cut; one that was set is left alone."""
    if length_is_set:
        return data
    multiple = sequence_multiple(layout)
    return data.model_copy(update={"max_seq_length": -(-data.max_seq_length // multiple) * multiple})


def fill_schedule(schedule: ScheduleSection, train: TrainSection) -> ScheduleSection:
    """The schedule ends with the run, where its length is known before the data is."""
    if train.max_steps is None or schedule.unit == "tokens":
        return schedule
    try:
        sizes = BatchSizes(train.global_batch_size, train.rampup_batch_size)
    except UserError:  # a finding of its own
        return schedule
    return _fill(schedule, {"decay_samples": sizes.samples_of(train.max_steps)})


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
    yield from _mixed_units(schedule)
    warmup_key, decay_key, wsd_key = (f"schedule.{name}_{schedule.unit}" for name in SCHEDULE_PARTS)
    warmup, decay, wsd = schedule.parts
    if schedule.decay != "constant" and decay is not None and warmup > decay:
        message = (
            f"{warmup_key} {warmup} is larger than {decay_key} {decay}: the schedule would end before its "
            f"warm-up; {decay_key.removeprefix('schedule.')} counts from the first {schedule.unit[:-1]}"
        )
        yield message, (warmup_key, decay_key)
    elif schedule.decay == "wsd" and wsd is not None and decay is not None and warmup + wsd > decay:
        message = (
            f"{warmup_key} {warmup} + {wsd_key} {wsd} is larger than {decay_key} {decay}: the last {wsd} of "
            f"them, in which wsd decays, would begin in the warm-up; try {wsd_key} {max(1, decay - warmup)}"
        )
        yield message, (warmup_key, wsd_key, decay_key)
    yield from _wsd_problems(schedule, wsd_key)


def _wsd_problems(schedule: ScheduleSection, wsd_key: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    wsd = schedule.parts[2]
    if schedule.decay == "wsd" and wsd is None:
        message = (
            f"schedule.decay wsd needs {wsd_key}: how many {schedule.unit}, the last ones of the schedule, "
            "the decay takes"
        )
        yield message, ("schedule.decay",)
    elif schedule.decay != "wsd" and wsd is not None:
        message = (
            f"{wsd_key} {wsd} belongs to schedule.decay wsd, and that is {schedule.decay}; set one of them "
            "so that they agree"
        )
        yield message, (wsd_key, "schedule.decay")


def _mixed_units(schedule: ScheduleSection) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A schedule counts in one unit."""
    if schedule.unit == "samples":
        return
    names = [f"{name}_{unit}" for unit in ("samples", "tokens") for name in SCHEDULE_PARTS]
    given = [name for name in names if getattr(schedule, name)]
    samples = next((name for name in given if name.endswith("samples")), None)
    if samples is not None:
        tokens = next((name for name in names[3:] if getattr(schedule, name) is not None), names[3])
        message = (
            f"schedule.{samples} {getattr(schedule, samples)} and schedule.{tokens} "
            f"{getattr(schedule, tokens)}: a schedule counts samples or tokens, not both; keep one kind"
        )
        yield message, (f"schedule.{samples}", f"schedule.{tokens}")
