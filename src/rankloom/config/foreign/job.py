"""A job of another program, as a mapping in our keys that knows what each value was called there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankloom.config.findings import Finding

__all__ = ["ForeignJob"]


@dataclass(frozen=True)
class ForeignJob:
    """What another program's job says, in our keys. Values that program would fill in itself are filled in.

    A batch size is in rows, a length in tokens. Nothing here depends on a layout: it is not known yet.
    """

    program: str  # "megatron" | "nemo-rl"
    origin: str  # "train.sh", "the command line", "grpo.yaml"
    mapping: Mapping[str, Mapping[str, object]]  # sections parallel, cluster, train, data
    sources: Mapping[str, str]  # dotted key -> "file" | "default" (that program's own) | "cli"
    spelled: Mapping[str, str]  # dotted key -> that program's name: "--context-parallel-size"
    read: tuple[str, ...]  # what was understood, as spelled: "--tensor-model-parallel-size 4"
    ignored: tuple[str, ...]  # names of what was not looked at
    findings: tuple[Finding, ...]
    model: Mapping[str, object] | None  # a Hugging Face config.json equal to the job's model
    sequence_multiple: int | None = None  # the user's own: lengths are padded to a multiple of it
    eval_batch_size: int | None = None  # rows of an evaluation batch; spelled["train.eval_batch_size"]
    eval_micro_batch_size: int | None = None
    equal_stages: bool = True  # every pipeline stage is one stretch of layers, all of the same length
    element_size: int | None = None  # bytes of a parameter and an activation, None where it is not said
    unknown: frozenset[str] = frozenset()  # dotted keys that the job sets, to what is not known
