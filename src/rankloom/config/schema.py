"""The sections of a config file: every setting with its type and class default. Nothing else is a setting.

``None`` in a setting with a derived value (shards, sequence_parallel, decay_samples, metrics ...) stands
until ``resolve`` fills it in; a resolved config has the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rankloom.config.values import (
    Beta,
    Clock,
    Count,
    DataSources,
    FreeMapping,
    NonNegative,
    NonNegativeInt,
    Positive,
    Rampup,
    RankLists,
    Rows,
    Seconds,
    Share,
    Text,
    Texts,
    TimeLimit,
    WandbSettings,
)

__all__ = [
    "SECTIONS",
    "CheckpointSection",
    "ClusterSection",
    "CommSection",
    "DataSection",
    "LoggingSection",
    "ModelSection",
    "OptimizerSection",
    "ParallelSection",
    "ScheduleSection",
    "Section",
    "TrainSection",
]


class Section(BaseModel):
    """One section of a config file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(Section):
    """The model: a Hugging Face folder, or the content of a ``config.json`` for one trained from scratch."""

    path: Text | None = None
    config: FreeMapping | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


class ParallelSection(Section):
    """The layout, in Megatron's names; null is derived."""

    tensor_model_parallel_size: Count = 1
    sequence_parallel: bool | None = None  # on when TP > 1
    tensor_parallel_num_weight_shards: Count | None = None  # TP
    tensor_parallel_num_sequence_shards: Count | None = None  # the SP degree
    context_parallel_size: Count = 1
    pipeline_model_parallel_size: Count = 1
    rank_order: Literal["tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp"] = "tp-gtp-cp-dp-pp"


class DataSection(Section):
    """Chat records and how they become rows of tokens."""

    source: Literal["chats", "energon"] = "chats"
    path: Text | None = None  # of source energon: a data set made ready with energon prepare
    num_virtual_lanes: Count = 64  # of source energon: parts it is cut into, a multiple of the lanes
    train: DataSources | None = None  # files, globs, saved data sets, "python-docs"
    validation: DataSources | None = None
    validation_split: Share = 0.0  # of the records of data.train, instead of data.validation
    train_on: Literal["all_turns", "last_turn", "all"] = "all_turns"
    max_seq_length: Count = 512  # tokens of a row; as a default, rounded up to what the layout can cut
    packing: bool | Literal["first_fit_decreasing", "greedy", "none"] = True  # true: greedy
    packing_window: Count = 1024  # records that first_fit_decreasing looks at together; 128 with energon
    seed: NonNegativeInt = 0
    last_batch: Literal["fill", "drop"] = "fill"
    balance: Literal["none", "work"] = "none"  # how the rows of a step are dealt to lanes
    num_workers: NonNegativeInt = 0  # processes of a lane that build rows ahead of the step; 0: a thread
    bad_records: Literal["error", "skip"] = "error"
    overlong: Literal["error", "drop", "truncate"] = "drop"
    cache_dir: Text | None = None


class TrainSection(Section):
    """How much is trained, in rows and optimizer steps; one of max_steps and epochs."""

    micro_batch_size: Rows = 1
    global_batch_size: Rows
    max_steps: Count | None = None
    epochs: Count | None = None
    rampup_batch_size: Rampup | None = None  # start, increment, samples until global_batch_size
    eval_every: NonNegativeInt = 0  # steps; 0: at the end alone, where there is validation data
    eval_batch_size: Rows | None = None  # rows over all lanes; global_batch_size
    seed: NonNegativeInt = 0
    gradient_checkpointing: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"


class OptimizerSection(Section):
    """AdamW."""

    name: Literal["adamw"] = "adamw"
    lr: NonNegative = 3e-4
    weight_decay: NonNegative = 0.1
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: Positive = 1e-8
    clip_grad: NonNegative = 1.0  # global gradient norm; 0: off
    no_decay: tuple[Text, ...] = ()  # globs of parameter names; empty: norms and biases


class ScheduleSection(Section):
    """The learning rate over consumed samples (rows), or over consumed tokens where one of those is set."""

    decay: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_samples: NonNegativeInt = 0
    decay_samples: Count | None = None  # max_steps x global_batch_size; with epochs, known once the data is
    wsd_decay_samples: Count | None = None  # of decay_samples, the last ones, in which wsd decays
    warmup_tokens: NonNegativeInt | None = None
    decay_tokens: Count | None = None  # in a schedule over tokens: those of the run, once the data is known
    wsd_decay_tokens: Count | None = None
    min_lr: NonNegative = 0.0

    @property
    def unit(self) -> Literal["samples", "tokens"]:
        """What the schedule counts."""
        tokens = (self.warmup_tokens, self.decay_tokens, self.wsd_decay_tokens)
        return "samples" if all(count is None for count in tokens) else "tokens"

    @property
    def parts(self) -> tuple[int, int | None, int | None]:
        """Warm-up, all of the schedule and the decay of wsd, in its unit."""
        if self.unit == "samples":
            return self.warmup_samples, self.decay_samples, self.wsd_decay_samples
        return self.warmup_tokens or 0, self.decay_tokens, self.wsd_decay_tokens


class CheckpointSection(Section):
    """Where a run keeps what it writes, and how often."""

    dir: Text = "runs/rankloom"
    save_every: NonNegativeInt = 0  # steps; 0: no checkpoint
    resume: Text = "auto"  # auto, never, or a checkpoint
    keep: Count | None = 2  # of the latest checkpoints; null: all
    keep_every: Count | None = None  # steps; checkpoints of their multiples stay
    background: bool = True  # write while training goes on
    allow_changes: Texts = ()  # globs of settings that may differ from those of the resumed checkpoint
    export_every: NonNegativeInt = 0  # steps between Hugging Face folders; 0: at the end alone
    save_before: Clock | None = None  # save and end before this time
    time_limit: TimeLimit | None = None  # the same, counted from the start

    @property
    def saves(self) -> bool:
        """Whether the run can end with a checkpoint, so that a next one goes on from there."""
        return self.save_every > 0 or self.save_before is not None or self.time_limit is not None


class ClusterSection(Section):
    """The ranks and what starts them."""

    world_size: Count | None = None  # null: that of torchrun
    engine: Literal["local", "torchrun", "ray"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    address: Text | None = None  # of the Ray cluster; RAY_ADDRESS, or one of this machine alone
    restarts: NonNegativeInt = 0  # with Ray: times that a run goes on after losing a rank or a node
    min_world_size: Count | None = None  # ranks that a restart may go down to; null: world_size
    nvlink_domain_size: Count | None = None  # gpus_per_node, or 8
    nvlink_domains: RankLists | None = None  # the ranks of each domain, instead of a size
    gpus_per_node: Count | None = None


class CommSection(Section):
    """Communication."""

    timeout_s: Seconds = 600.0  # seconds to wait for the others in one collective, or for a loader


class LoggingSection(Section):
    """Files written for people to look at."""

    metrics: Text | None = None  # <checkpoint.dir>/metrics.jsonl
    tensorboard: Text | None = None  # a folder
    wandb: WandbSettings | None = None


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "model": ModelSection,
        "parallel": ParallelSection,
        "data": DataSection,
        "train": TrainSection,
        "optimizer": OptimizerSection,
        "schedule": ScheduleSection,
        "checkpoint": CheckpointSection,
        "cluster": ClusterSection,
        "comm": CommSection,
        "logging": LoggingSection,
    }
)
