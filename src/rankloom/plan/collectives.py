"""Every collective of one optimizer step, with the bytes each rank hands to it.

Exchanges send the least possible: of a tensor that n ranks share, each sends (n - 1) times its own part. An
all-reduce is a reduce-scatter and an all-gather."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rankloom.plan.gathers import evaluation_visits, gathers_of, training_gathers
from rankloom.plan.model_plan import ModelPlan
from rankloom.plan.stages import stage_plans

__all__ = [
    "EVERY_GROUP",
    "GROUP_AXES",
    "PIPELINE",
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
PIPELINE = "pp"
# With that of the stages of a pipeline, which the plan alone knows.
EVERY_GROUP: dict[str, tuple[str, str]] = {**GROUP_AXES, PIPELINE: ("weights", PIPELINE)}
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "send"]
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
    sends each time; of a broadcast, what its first rank sends and no other.

    ``stage``: the pipeline stage whose ranks do it, None for all. A send goes from it to ``to_stage``.
    """

    what: str
    kind: Kind
    group: str
    count: int
    bytes_sent: int
    stage: int | None = None
    to_stage: int | None = None

    @property
    def view(self) -> str:
        return EVERY_GROUP[self.group][0]

    @property
    def axes(self) -> str:
        return EVERY_GROUP[self.group][1]


def step_collectives(plan: ModelPlan, shape: StepShape) -> tuple[CollectiveRecord, ...]:
    """All of them, those that send nothing (groups of one rank) left out.

    With pipeline stages each has its own. Microbatches pass one by one, forward to the last stage and back.
    """
    plans = stage_plans(plan)
    records: list[CollectiveRecord] = [*_data(plan, shape), _gradient_norm(plan)]
    for stage, own in enumerate(plans):
        found = (
            *_weights(own, shape),
            *_tensor_parallel(own, shape),
            *_context(own, shape),
            *_step_end(own, shape),
        )
        records += found if len(plans) == 1 else (replace(record, stage=stage) for record in found)
    records += _pipeline(plans, shape)
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
    stage = plan.layout.coords(rank).pp
    for r in records:
        if r.group not in total or r.stage not in (None, stage):
            continue
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
    gathers = training_gathers(plan)
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
    ends = plan.is_first + plan.is_last  # the exit of the embedding, the entrance of the head
    if plan.layout.sequence_parallel:
        gathers = layers * (2 + 2) + recomputed * 2 + ends
        scatters = layers * (2 + 2) + recomputed * 1 + ends
        yield CollectiveRecord("gather sequence", "all_gather", "tp", gathers * M, part)
        yield CollectiveRecord("sum sequence", "reduce_scatter", "tp", scatters * M, part)
    else:
        sums = layers * (2 + 2) + recomputed * 1 + ends
        yield CollectiveRecord("sum activations", "all_reduce", "tp", sums * M, 2 * part)
    if plan.is_last:
        sent = (tp - 1) * 3 * tokens * FP32
        yield CollectiveRecord("loss over the vocabulary", "all_gather", "tp", M, sent)
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
    if plan.is_last:
        others = plan.small.num_pieces - 1
        yield CollectiveRecord("loss", "all_gather", "gtp_remat_replica", 1, others * NUM_STEP_SUMS * FP64)


def _gradient_norm(plan: ModelPlan) -> CollectiveRecord:
    """With it, whether a rank wishes the run to end after this step."""
    num_bytes = (plan.layout.world_size - 1) * 2 * FP64
    return CollectiveRecord("gradient norm", "all_gather", "world", 1, num_bytes)


def _pipeline(plans: Sequence[ModelPlan], shape: StepShape) -> Iterator[CollectiveRecord]:
    """What stages send each other: activations to the next, their gradients to the one before; of a tied
    embedding, both ends the gradient of their copy to each other."""
    layout, spec, last = plans[0].layout, plans[0].spec, len(plans) - 1
    tokens = shape.micro_batch_size * shape.sequence_length // layout.runtime_context_parallel_size
    cut = layout.tensor_model_parallel_size if layout.sequence_parallel else 1
    sent = -(-tokens // cut) * spec.hidden_size * shape.element_size
    for stage in range(last):
        there, back = (stage, stage + 1), (stage + 1, stage)
        for what, (source, target) in (("send activations", there), ("send their gradients", back)):
            yield CollectiveRecord(what, "send", PIPELINE, shape.num_microbatches, sent, source, target)
    if spec.tie_word_embeddings and last:
        stored = next(unit.stored_numel for unit in plans[0].weights if unit.name == "model.embed_tokens")
        for source, target in ((0, last), (last, 0)):
            what = "exchange gradients of the embedding"
            yield CollectiveRecord(what, "send", PIPELINE, 1, stored * FP32, source, target)
