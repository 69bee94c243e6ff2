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
    Count,
    FreeMapping,
    NonNegative,
    NonNegativeInt,
    Positive,
    RankLists,
    Seconds,
    Text,
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

    train: Text | None = None  # "python-docs" or a JSONL file
    validation: Text | None = None
    max_seq_length: Count = 512  # tokens of a row; as a default, rounded up to what the layout can cut
    packing: bool = True
    seed: NonNegativeInt = 0
    last_batch: Literal["fill", "drop"] = "fill"
    bad_records: Literal["error", "skip"] = "error"
    overlong: Literal["error", "drop", "truncate"] = "drop"
    cache_dir: Text | None = None


class TrainSection(Section):
    """How much is trained, in rows and optimizer steps; one of max_steps and epochs."""

    micro_batch_size: Count = 1
    global_batch_size: Count
    max_steps: Count | None = None
    epochs: Count | None = None
    eval_every: NonNegativeInt = 0  # steps; 0: never
    eval_batch_size: Count | None = None  # rows over all lanes; global_batch_size
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
    """The learning rate over consumed samples (rows)."""

    decay: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_samples: NonNegativeInt = 0
    decay_samples: Count | None = None  # max_steps x global_batch_size; with epochs, known once the data is
    min_lr: NonNegative = 0.0


class CheckpointSection(Section):
    """Where a run keeps what it writes, and how often."""

    dir: Text = "runs/rankloom"
    save_every: NonNegativeInt = 0  # steps; 0: no checkpoint
    resume: Literal["auto", "never"] = "auto"
    keep: Count = 2


class ClusterSection(Section):
    """The ranks and what starts them."""

    world_size: Count | None = None  # null: that of torchrun
    engine: Literal["local", "torchrun", "ray"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nvlink_domain_size: Count | None = None  # gpus_per_node, or 8
    nvlink_domains: RankLists | None = None  # the ranks of each domain, instead of a size
    gpus_per_node: Count | None = None


class CommSection(Section):
    """Communication."""

    timeout_s: Seconds = 600.0  # seconds a rank may wait for the others in one collective


class LoggingSection(Section):
    """Files written for people to look at."""

    metrics: Text | None = None  # <checkpoint.dir>/metrics.jsonl
    tensorboard: Text | None = None


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
