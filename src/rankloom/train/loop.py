"""A whole run as seen from one rank: assemble, resume, train to the last step, export."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch.distributed as dist

from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.errors import RunError
from rankloom.plan.exported import model_folder
from rankloom.train.accounting import Accounting
from rankloom.train.assemble import (
    build_model,
    build_optimizer,
    connect,
    learning_rate,
    load_data,
    model_plan,
    num_steps,
    run_tokens,
)
from rankloom.train.evaluator import Evaluator, evaluation_rows, is_due
from rankloom.train.facts import (
    beginning_facts,
    evaluation_facts,
    lane_facts,
    replaced_facts,
    run_facts,
)
from rankloom.train.nonfinite import write_report
from rankloom.train.reporting import Reporter
from rankloom.train.resume import find_candidates, resume
from rankloom.train.saves import Saves
from rankloom.train.sinks import Sink, open_sinks
from rankloom.train.stopping import Stopping
from rankloom.train.worker import NOTHING, Restored, StepOutcome, Worker

__all__ = ["run_connected", "run_rank"]

GO_ON = Stopping()


def run_rank(
    resolved: ResolvedConfig,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    init_method: str,
    reporter: Reporter,
    activity: Activity,
    stopping: Stopping = GO_ON,
) -> Mapping[str, object]:
    """Trains as ``rank`` of ``resolved.layout``; returns the summary of the run, complete on rank 0.

    Raises UserError and RunError; whatever it raises, the process is expected to end.
    """
    assert world_size == resolved.layout.world_size
    with _Phases(reporter, activity)("connect the ranks"):
        comm = connect(resolved, rank=rank, local_rank=local_rank, init_method=init_method, activity=activity)
    summary = run_connected(resolved, comm, reporter=reporter, stopping=stopping)
    activity.phase = "end: leaving the other ranks"
    comm.close()
    dist.destroy_process_group()
    return summary


def run_connected(
    resolved: ResolvedConfig, comm: Communicator, *, reporter: Reporter, stopping: Stopping = GO_ON
) -> Mapping[str, object]:
    """The same once this rank has its groups; leaves them as they are."""
    activity = comm.activity
    phases = _Phases(reporter, activity)
    candidates = find_candidates(resolved, comm)
    with phases("prepare the data"):
        data = load_data(resolved)
    with phases("build the model"):
        plan = model_plan(resolved, vocab_size=data.vocab_size)
        model = build_model(resolved, plan, comm, data, empty=bool(candidates.folders))
        optimizer = build_optimizer(resolved, model)
    worker = Worker(resolved, comm, data, model=model, optimizer=optimizer, activity=activity)
    restored = Restored(0, NOTHING, candidates.notes)
    if candidates.folders:
        with phases("load the checkpoint"):
            restored = resume(resolved, comm, worker, candidates)
    with phases("compare ranks and lanes"):
        worker.verify_data(restored.step)
    max_steps = num_steps(resolved, worker.batches)
    folder = model_folder(resolved.checkpoint.dir)
    evaluated = evaluation_rows(resolved, data, lane=worker.batches.lane)
    for fact in [
        *run_facts(resolved, plan, data, model),
        *lane_facts(worker.batches, max_steps=max_steps),
        *evaluation_facts(evaluated, every=resolved.train.eval_every),
        *(() if restored.step else replaced_facts(Path(str(resolved.logging.metrics)), folder)),
        *beginning_facts(restored, max_steps=max_steps),
    ]:
        reporter.note(fact)
    evaluator = None
    if evaluated is not None:
        evaluator = Evaluator(evaluated, comm, delivery=worker.delivery, model=model)
    saves = Saves(resolved, worker, reporter, max_steps=max_steps)
    try:
        steps = _Steps(
            resolved,
            worker,
            comm,
            evaluator=evaluator,
            reporter=reporter,
            max_steps=max_steps,
            restored=restored,
            saves=saves,
            stopping=stopping,
        )
        summary = steps.run()
    finally:
        worker.close()
    places: dict[str, object] = {"metrics": resolved.logging.metrics}
    if steps.stopped:
        saves.finish()
        places["stopped"] = f"{steps.stopped}; the same command goes on from {saves.last}"
    else:
        worker.verify_copies()
        worker.export(folder)
        saves.finish()
        places["model"] = str(folder)
    activity.phase = "end: everything is written"
    return {**summary, **saves.summary(), **places}


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


class _Steps:
    """The steps of a run that are not done yet; metrics are written by the first rank."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        worker: Worker,
        comm: Communicator,
        *,
        evaluator: Evaluator | None,
        reporter: Reporter,
        max_steps: int,
        restored: Restored,
        saves: Saves,
        stopping: Stopping,
    ) -> None:
        self._resolved = resolved
        self._worker = worker
        self._activity = comm.activity
        self._evaluator = evaluator
        self._reporter = reporter
        self._first, self._max_steps = restored.step + 1, max_steps
        self._saves = saves
        self._stopping = stopping
        self._is_first = comm["world"].index == 0
        self._longest_s = 0.0
        self.stopped = ""  # why and after which step the run ended early
        self._rate = learning_rate(
            resolved,
            max_steps=max_steps,
            tokens=lambda: run_tokens(worker.batches, max_steps=max_steps, consumed=restored.consumed),
        )
        self._accounting = Accounting(
            comm, max_seq_length=resolved.data.max_seq_length, consumed=restored.consumed
        )
        self._activity.phase = "start-up: opening the metrics file"
        self._sinks: list[Sink] = open_sinks(resolved, through_step=restored.step) if self._is_first else []

    def run(self) -> dict[str, object]:
        """Trains to the last step, or until it is to stop; returns the summary."""
        row: dict[str, object] = {}
        with ExitStack() as closing:
            for sink in self._sinks:
                closing.callback(sink.close)
            if self._first <= self._max_steps:
                row = self._all()
            self._activity.phase = "end: closing the metrics file"
        ending = {name: row.get(name) for name in ("eval_loss", "eval_tokens")}
        skipped, told = self._worker.batches.left_out()
        return {**self._accounting.summary(skipped), **ending, "left out": told}

    def _all(self) -> dict[str, object]:
        row: dict[str, object] = {}
        self._worker.batches.read_ahead(first=self._first - 1, last=self._max_steps - 1)
        self._reporter.start(max_steps=self._max_steps, first_step=self._first)
        self._stopping.begin()
        for step in range(self._first, self._max_steps + 1):
            since = time.monotonic()
            row = self._step(step)
            self._saves.after(step, self._accounting.consumed, ends=bool(self.stopped))
            self._longest_s = max(self._longest_s, time.monotonic() - since)
            if self.stopped:
                break
        return row

    def _step(self, step: int) -> dict[str, object]:
        self._activity.phase = f"step {step}: counting its rows"
        consumed = self._accounting.begin(step, self._worker.batches)
        lr = self._rate.at(consumed.tokens if self._rate.unit == "tokens" else consumed.rows)
        wish = self._wish()
        outcome = self._worker.step(step - 1, lr=lr, wish=bool(wish))
        row = self._accounting.end(outcome, lr=lr)
        stops = not outcome.finite and self._resolved.train.on_nonfinite == "stop"
        if not stops:
            row |= self._evaluated(step)
        self._activity.phase = f"step {step}: writing metrics"
        for sink in self._sinks:
            sink.write(row)
        self._reporter.step(row)
        if not outcome.finite:
            self._tell_not_finite(outcome, step, stops=stops)
        if outcome.stops and step < self._max_steps:
            why = wish or "another rank was asked to end"
            self.stopped = f"after step {step} of {self._max_steps} ({why})"
        return row

    def _wish(self) -> str:
        """Why this rank wants the run to end after the step; time is told by the first rank's clock alone."""
        need_s = self._longest_s + self._saves.need_s
        return self._stopping.reason(need_s=need_s) if self._is_first else self._stopping.asked()

    def _evaluated(self, step: int) -> dict[str, object]:
        """What an evaluation after this step adds to its row."""
        due = is_due(step, every=self._resolved.train.eval_every, max_steps=self._max_steps)
        if self._evaluator is None or not due:
            return {}
        found = self._evaluator.evaluate(f"after step {step}")
        return {"eval_loss": found.loss, "eval_tokens": found.tokens}

    def _tell_not_finite(self, outcome: StepOutcome, step: int, *, stops: bool) -> None:
        self._activity.phase = f"step {step}: reporting that it is not finite"
        message = _not_finite(self._resolved, outcome, self._worker, step=step, first=self._is_first)
        self._worker.meet("the report of a step")  # who stops must not take down the one that writes
        if stops:
            self._saves.finish()
            raise RunError(f"{message}; train.on_nonfinite: skip would go on without this step")
        self._reporter.note(message)


def _not_finite(
    resolved: ResolvedConfig,
    outcome: StepOutcome,
    worker: Worker,
    *,
    step: int,
    first: bool,
) -> str:
    """The first rank writes which records were trained on. Returns what happened, in words."""
    folder = Path(resolved.checkpoint.dir) / "nonfinite"
    rows = worker.batches.report(step - 1)
    if first:
        write_report(folder, outcome, rows, step=step)
    lanes = ", ".join(map(str, outcome.bad_lanes))
    fault = f"not finite in lanes {lanes}" if lanes else "no lane's loss is at fault"
    return (
        f"step {step}: loss {outcome.loss}, gradient norm {outcome.grad_norm}; {fault}; nothing was updated; "
        f"the records are in {folder / f'step-{step}.json'}"
    )
