"""What is said before the first step: the data, the model, the layout, and what will not be trained."""

from __future__ import annotations

from pathlib import Path

from rankloom.config import ResolvedConfig
from rankloom.data.evaluation import EvaluationRows
from rankloom.data.prepare import RunData
from rankloom.models import ShardedModel
from rankloom.plan import ModelPlan
from rankloom.records.words import counted
from rankloom.train.batches import Batches
from rankloom.train.worker import Restored

__all__ = ["beginning_facts", "evaluation_facts", "lane_facts", "replaced_facts", "run_facts"]


def run_facts(resolved: ResolvedConfig, plan: ModelPlan, data: RunData, model: ShardedModel) -> list[str]:
    """What is trained, on what, and how it is cut."""
    layout, spec = resolved.layout, plan.spec
    stored = plan.parameter_bytes(model.small.stored.element_size())
    facts = [
        *resolved.notes,
        *data.facts,
        f"model: {spec.family}, {spec.num_parameters:,} parameters; a rank stores {stored:,} bytes of them",
        f"layout: {counted(layout.world_size, 'rank')}; weights cut "
        f"{counted(layout.tensor_parallel_num_weight_shards, 'way')}, "
        f"{counted(layout.num_weight_replicas, 'copy', 'copies')}; "
        f"{counted(layout.batch_parallel_size, 'lane')}, each sequence cut "
        f"{counted(layout.runtime_context_parallel_size, 'way')}",
    ]
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and longest < resolved.data.max_seq_length:
        facts.append(
            f"data.max_seq_length {resolved.data.max_seq_length} is more than the model's "
            f"max_position_embeddings {longest}"
        )
    return facts


def replaced_facts(*paths: Path) -> list[str]:
    """This run starts at step 1; what an earlier one left in the same place does not stay."""
    return [f"{path} is of an earlier run and will be replaced" for path in paths if path.exists()]


def beginning_facts(restored: Restored, *, max_steps: int) -> list[str]:
    """What was found of earlier checkpoints, and where the run goes on."""
    facts = list(restored.notes)
    if restored.step > max_steps:
        facts.append(f"nothing is left to train: step {restored.step} is past the last one, {max_steps}")
    elif restored.step and restored.step == max_steps:
        facts.append(f"nothing is left to train: all {max_steps} steps are done")
    elif restored.step:
        facts.append(f"goes on with step {restored.step + 1} of {max_steps}")
    return facts


def lane_facts(batches: Batches, *, max_steps: int) -> list[str]:
    """Which lanes have empty rows alone in the last step of the first epoch, where the run comes to it."""
    planned = batches.planned
    if planned is None:
        return []  # there are no empty rows
    loader, stream, epoch = planned.loader, planned.stream, planned.stream.origin.epoch
    step0 = stream.num_steps(epoch + 1) - 1
    if not stream.origin.step <= step0 < max_steps:
        return []
    if stream.counts(step0).rows == len(stream.batch(step0)):
        return []
    lanes = loader.dealer.lanes(stream.batch(step0))
    idle = [
        str(lane)
        for lane, dealt in enumerate(lanes)
        if all(row.is_filler for microbatch in dealt for row in microbatch)
    ]
    if not idle:
        return []
    who = f"lane {idle[0]} has" if len(idle) == 1 else f"lanes {', '.join(idle)} have"
    return [f"last batch of epoch {epoch}: {who} empty fillers alone"]


def evaluation_facts(rows: EvaluationRows | None, *, every: int) -> list[str]:
    """How much is evaluated, and when."""
    if rows is None:
        return []
    when = f"every {every} steps and at the end" if every else "at the end"
    return [f"evaluation: {counted(rows.num_records, 'record')} in {counted(rows.num_rows, 'row')}, {when}"]
