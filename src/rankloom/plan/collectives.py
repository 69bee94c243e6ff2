"""Every collective of one optimizer step, with the bytes each rank hands to it.

Exchanges send the least possible: of a tensor that n ranks share, each sends (n - 1) times its own part. An
all-reduce is a reduce-scatter and an all-gather."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rankloom.plan.gathers import evaluation_visits, gathers_of, training_visits
from rankloom.plan.model_plan import ModelPlan

__all__ = [
    "GROUP_AXES",
    "CollectiveRecord",
    "StepShape",
    "bytes_by_group",
    "evaluation_collectives",
    "step_collectives",
]

# Name of a group -> (view, axes); the names are the keys of comm_bytes in the metrics.
GROUP_AXES: dict[str, tuple[str, str]] = {
    "tp": ("weights", "tp"),
    "gtp_remat": ("weights", "gtp_remat"),
    "replica": ("weights", "replica"),
    "gtp_remat_replica": ("weights", "gtp_remat_replica"),
    "context": ("tokens", "context"),
    "lane": ("tokens", "lane"),
    "world": ("weights", "world"),
}
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast"]
FP32, FP64, INT32 = 4, 8, 4
NUM_STEP_SUMS = 2  # loss and number of trained tokens
NUM_DELIVERED_PLANES = 4  # ids, labels, positions, documents


@dataclass(frozen=True)
class StepShape:
    """What one step works on: rows of ``sequence_length`` tokens, ``micro_batch_size`` of them a lane and
    microbatch; ``element_size`` bytes of a parameter and an activation."""

    micro_batch_size: int
    num_microbatches: int
    sequence_length: int
    element_size: int
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class CollectiveRecord:
    """A collective that happens ``count`` times in a step. ``bytes_sent`` is what each rank of the group
    sends each time; of a broadcast, what its first rank sends and no other."""

    what: str
    kind: Kind
    group: str
    count: int
    bytes_sent: int

    @property
    def view(self) -> str:
        return GROUP_AXES[self.group][0]

    @property
    def axes(self) -> str:
        return GROUP_AXES[self.group][1]


def step_collectives(plan: ModelPlan, shape: StepShape) -> tuple[CollectiveRecord, ...]:
    """All of them, those that send nothing (groups of one rank) left out."""
    records: Iterable[CollectiveRecord] = (
        *_data(plan, shape),
        *_weights(plan, shape),
        *_tensor_parallel(plan, shape),
        *_context(plan, shape),
        *_step_end(plan, shape),
    )
    return tuple(r for r in records if r.count and r.bytes_sent)


def evaluation_collectives(plan: ModelPlan, shape: StepShape) -> tuple[CollectiveRecord, ...]:
    """Those of an evaluation of ``shape.num_microbatches`` microbatches a lane: forward passes, and one sum
    of the losses."""
    others = plan.small.num_pieces - 1
    records: Iterable[CollectiveRecord] = (
        *_data(plan, shape),
        *_evaluated_weights(plan, shape),
        *_evaluated_tensor_parallel(plan, shape),
        _gathered_keys(plan, shape, plan.spec.num_layers),
        CollectiveRecord(
            "evaluation loss", "all_gather", "gtp_remat_replica", 1, others * NUM_STEP_SUMS * FP64
        ),
    )
    return tuple(r for r in records if r.count and r.bytes_sent)


def bytes_by_group(records: Iterable[CollectiveRecord], plan: ModelPlan, rank: int) -> dict[str, int]:
    """Bytes that ``rank`` sends in a step, for every group."""
    total = dict.fromkeys(GROUP_AXES, 0)
    for r in records:
        view = getattr(plan.layout, r.view)
        if r.kind != "broadcast" or int(view.group_of(rank, r.axes)[0]) == rank:
            total[r.group] += r.count * r.bytes_sent
    return total


def _data(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    members = plan.layout.world_size // plan.layout.batch_parallel_size
    rows = shape.micro_batch_size
    values = rows * shape.sequence_length * NUM_DELIVERED_PLANES + rows
    yield CollectiveRecord(
        "deliver rows", "broadcast", "lane", shape.num_microbatches, (members - 1) * values * INT32
    )


def _weights(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    peers = plan.layout.gtp_remat_size - 1
    gathers = list(gathers_of(training_visits(plan)))
    for unit in plan.weights:
        count = gathers.count(unit.name) * shape.num_microbatches
        sent = peers * unit.numel
        yield CollectiveRecord(
            f"gather {unit.name}", "all_gather", "gtp_remat", count, sent * shape.element_size
        )
        yield CollectiveRecord(
            f"reduce {unit.name}", "reduce_scatter", "gtp_remat", shape.num_microbatches, sent * FP32
        )


def _evaluated_weights(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    peers = plan.layout.gtp_remat_size - 1
    gathers = list(gathers_of(evaluation_visits(plan)))
    for unit in plan.weights:
        count = gathers.count(unit.name) * shape.num_microbatches
        sent = peers * unit.numel * shape.element_size
        yield CollectiveRecord(f"gather {unit.name}", "all_gather", "gtp_remat", count, sent)


def _evaluated_tensor_parallel(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    tp, M = plan.layout.tensor_model_parallel_size, shape.num_microbatches
    tokens, part = _parts(plan, shape)
    # Two entrances and two exits of a layer, the exit of the embedding and the entrance of the head.
    if plan.layout.sequence_parallel:
        times = (plan.spec.num_layers * 2 + 1) * M
        yield CollectiveRecord("gather sequence", "all_gather", "tp", times, part)
        yield CollectiveRecord("sum sequence", "reduce_scatter", "tp", times, part)
    else:
        sums = (plan.spec.num_layers * 2 + 1) * M
        yield CollectiveRecord("sum activations", "all_reduce", "tp", sums, 2 * part)
    yield CollectiveRecord("loss over the vocabulary", "all_gather", "tp", M, (tp - 1) * 3 * tokens * FP32)


def _parts(plan: ModelPlan, shape: StepShape) -> tuple[int, int]:
    """Tokens of a microbatch on a context rank, and the bytes of their activations sent over tp."""
    tp = plan.layout.tensor_model_parallel_size
    tokens = shape.micro_batch_size * shape.sequence_length // plan.layout.runtime_context_parallel_size
    return tokens, (tp - 1) * -(-tokens * plan.spec.hidden_size // tp) * shape.element_size


def _tensor_parallel(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    tp = plan.layout.tensor_model_parallel_size
    layers, M = plan.spec.num_layers, shape.num_microbatches
    tokens, part = _parts(plan, shape)
    recomputed = layers * shape.gradient_checkpointing
    # A layer has two entrances and two exits. Recomputing stops before its last exit, which saves nothing.
    if plan.layout.sequence_parallel:
        gathers = layers * (2 + 2) + recomputed * 2 + 2
        scatters = layers * (2 + 2) + recomputed * 1 + 2
        yield CollectiveRecord("gather sequence", "all_gather", "tp", gathers * M, part)
        yield CollectiveRecord("sum sequence", "reduce_scatter", "tp", scatters * M, part)
    else:
        sums = layers * (2 + 2) + recomputed * 1 + 2
        yield CollectiveRecord("sum activations", "all_reduce", "tp", sums * M, 2 * part)
    yield CollectiveRecord("loss over the vocabulary", "all_gather", "tp", M, (tp - 1) * 3 * tokens * FP32)
    partial = -(-plan.small_partial_numel // tp)
    yield CollectiveRecord("sum partial gradients", "all_reduce", "tp", 1, 2 * (tp - 1) * partial * FP32)


def _context(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    layers = plan.spec.num_layers
    gathered = _gathered_keys(plan, shape, layers * (2 if shape.gradient_checkpointing else 1))
    yield gathered
    yield CollectiveRecord(
        "sum gradients of keys and values",
        "reduce_scatter",
        "context",
        layers * shape.num_microbatches,
        gathered.bytes_sent,
    )


def _gathered_keys(plan: ModelPlan, shape: StepShape, forwards: int) -> CollectiveRecord:
    """Of ``forwards`` attentions a microbatch."""
    size, spec = plan.layout.runtime_context_parallel_size, plan.spec
    heads = spec.num_key_value_heads // plan.layout.tensor_model_parallel_size
    tokens = shape.micro_batch_size * shape.sequence_length // size
    sent = (size - 1) * 2 * tokens * heads * spec.head_dim * shape.element_size
    count = forwards * shape.num_microbatches
    return CollectiveRecord("gather keys and values", "all_gather", "context", count, sent)


def _step_end(plan: ModelPlan, shape: StepShape) -> Iterator[CollectiveRecord]:
    groups = [(unit, "replica") for unit in plan.weights] + [(plan.small, "gtp_remat_replica")]
    for unit, group in groups:
        sent = (unit.num_pieces - 1) * unit.piece_numel
        yield CollectiveRecord(f"sum {unit.name} over copies", "reduce_scatter", group, 1, sent * FP32)
        yield CollectiveRecord(f"refill {unit.name}", "all_gather", group, 1, sent * shape.element_size)
    others = plan.small.num_pieces - 1
    yield CollectiveRecord("loss", "all_gather", "gtp_remat_replica", 1, others * NUM_STEP_SUMS * FP64)
    yield CollectiveRecord("gradient norm", "all_gather", "world", 1, (plan.layout.world_size - 1) * FP64)
