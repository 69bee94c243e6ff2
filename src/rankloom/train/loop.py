"""A whole run as seen from one rank: assemble, train to the last step, export."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.data import PreparedData, prepare
from rankloom.errors import RunError
from rankloom.models import ShardedModel
from rankloom.plan import ModelPlan
from rankloom.plan.exported import model_folder
from rankloom.train.accounting import Accounting
from rankloom.train.assemble import build_model, build_optimizer, connect, learning_rate, model_plan
from rankloom.train.metrics import MetricsFile
from rankloom.train.nonfinite import write_report
from rankloom.train.reporting import Reporter
from rankloom.train.worker import StepOutcome, Worker

__all__ = ["run_connected", "run_rank"]


def run_rank(
    resolved: ResolvedConfig,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    init_method: str,
    reporter: Reporter,
    activity: Activity,
) -> Mapping[str, object]:
    """Trains as ``rank`` of ``resolved.layout``; returns the summary of the run, complete on rank 0.

    Raises UserError and RunError; whatever it raises, the process is expected to end.
    """
    assert world_size == resolved.layout.world_size
    with _Phases(reporter, activity)("connect the ranks"):
        comm = connect(resolved, rank=rank, local_rank=local_rank, init_method=init_method, activity=activity)
    summary = run_connected(resolved, comm, reporter=reporter)
    activity.phase = "end: leaving the other ranks"
    comm.close()
    dist.destroy_process_group()
    return summary


def run_connected(
    resolved: ResolvedConfig, comm: Communicator, *, reporter: Reporter
) -> Mapping[str, object]:
    """The same once this rank has its groups; leaves them as they are."""
    activity = comm.activity
    phases = _Phases(reporter, activity)
    with phases("prepare the data"):
        data = prepare(resolved)
    with phases("build the model"):
        plan = model_plan(resolved, vocab_size=data.vocab_size)
        model = build_model(resolved, plan, comm, data)
        optimizer = build_optimizer(resolved, model)
    worker = Worker(resolved, comm, data, model=model, optimizer=optimizer, activity=activity)
    with phases("compare ranks and lanes"):
        worker.verify_data(0)
    max_steps = resolved.train.max_steps or data.stream.num_steps(resolved.train.epochs or 0)
    folder = model_folder(resolved.checkpoint.dir)
    for fact in [
        *_facts(resolved, plan, data, model),
        *_replaced(Path(str(resolved.logging.metrics)), folder),
    ]:
        reporter.note(fact)
    summary = _train(resolved, worker, comm, data, reporter=reporter, max_steps=max_steps)
    worker.verify_copies()
    worker.export(folder)
    activity.phase = "end: the model is written"
    return {**summary, "model": str(folder), "metrics": resolved.logging.metrics}


class _Phases:
    """Times the parts of the start-up."""

    def __init__(self, reporter: Reporter, activity: Activity) -> None:
        self._reporter = reporter
        self._activity = activity

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._activity.phase = f"start-up: {name}"
        since = time.monotonic()
        yield
        self._reporter.phase(name, time.monotonic() - since)


def _facts(resolved: ResolvedConfig, plan: ModelPlan, data: PreparedData, model: ShardedModel) -> list[str]:
    layout, spec = resolved.layout, plan.spec
    stored = plan.parameter_bytes(model.small.stored.element_size())
    facts = [
        *resolved.notes,
        *data.facts,
        f"model: {spec.family}, {spec.num_parameters:,} parameters; a rank stores {stored:,} bytes of them",
        f"layout: {layout.world_size} ranks; weights cut {layout.tensor_parallel_num_weight_shards} ways, "
        f"{layout.num_weight_replicas} copies; {layout.batch_parallel_size} lanes, each sequence cut "
        f"{layout.runtime_context_parallel_size} ways",
    ]
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and longest < resolved.data.max_seq_length:
        facts.append(
            f"data.max_seq_length {resolved.data.max_seq_length} is more than the model's "
            f"max_position_embeddings {longest}"
        )
    return facts


def _replaced(*paths: Path) -> list[str]:
    """This run starts at step 1; what an earlier one left in the same place does not stay."""
    return [f"{path} is of an earlier run and will be replaced" for path in paths if path.exists()]


def _train(
    resolved: ResolvedConfig,
    worker: Worker,
    comm: Communicator,
    data: PreparedData,
    *,
    reporter: Reporter,
    max_steps: int,
) -> dict[str, object]:
    """All steps; metrics are written by the first rank."""
    rate = learning_rate(resolved, max_steps=max_steps)
    accounting = Accounting(data.stream, comm)
    activity = comm.activity
    activity.phase = "start-up: opening the metrics file"
    metrics = MetricsFile(str(resolved.logging.metrics)) if comm["world"].index == 0 else None
    reporter.start(max_steps=max_steps, first_step=1)
    for step in range(1, max_steps + 1):
        lr = rate.at(accounting.begin(step))
        outcome = worker.step(step - 1, lr=lr)
        row = accounting.end(outcome, lr=lr)
        if metrics is not None:
            activity.phase = f"step {step}: writing metrics"
            metrics.write(row)
        reporter.step(row)
        if not outcome.finite:
            activity.phase = f"step {step}: reporting that it is not finite"
            message = _not_finite(resolved, outcome, data, step=step, first=metrics is not None)
            worker.meet("the report of a step")  # who stops must not take down the one that writes
            if resolved.train.on_nonfinite == "stop":
                raise RunError(f"{message}; train.on_nonfinite: skip would go on without this step")
            reporter.note(message)
    activity.phase = "end: closing the metrics file"
    if metrics is not None:
        metrics.close()
    return accounting.summary()


def _not_finite(
    resolved: ResolvedConfig, outcome: StepOutcome, data: PreparedData, *, step: int, first: bool
) -> str:
    """The first rank writes which records were trained on. Returns what happened, in words."""
    folder = Path(resolved.checkpoint.dir) / "nonfinite"
    if first:
        write_report(
            folder,
            outcome,
            data,
            step=step,
            num_lanes=resolved.layout.batch_parallel_size,
            micro_batch_size=resolved.train.micro_batch_size,
        )
    lanes = ", ".join(map(str, outcome.bad_lanes))
    fault = f"not finite in lanes {lanes}" if lanes else "no lane's loss is at fault"
    return (
        f"step {step}: loss {outcome.loss}, gradient norm {outcome.grad_norm}; {fault}; nothing was updated; "
        f"the records are in {folder / f'step-{step}.json'}"
    )
