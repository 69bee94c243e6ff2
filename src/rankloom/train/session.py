"""A run as one rank lives it: everything in its place, then step after step, then the end.

Whoever drives it, the loop of this process or a controller elsewhere, calls the same methods on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rankloom.checkpoint.folders import checkpoint_folder
from rankloom.comm import Communicator
from rankloom.config import ResolvedConfig
from rankloom.errors import RunError, UserError
from rankloom.plan.exported import model_folder
from rankloom.train.accounting import Accounting
from rankloom.train.assemble import (
    build_model,
    build_optimizer,
    learning_rate,
    load_data,
    model_plan,
    num_steps,
    run_tokens,
)
from rankloom.train.evaluator import Evaluation, Evaluator, evaluation_rows, is_due
from rankloom.train.facts import beginning_facts, evaluation_facts, lane_facts, replaced_facts, run_facts
from rankloom.train.nonfinite import not_finite
from rankloom.train.phases import Phases
from rankloom.train.reporting import Reporter
from rankloom.train.resume import find_candidates, resume
from rankloom.train.saves import Saves
from rankloom.train.sinks import Sink, open_sinks
from rankloom.train.stopping import Stopping
from rankloom.train.worker import NOTHING, Feed, Restored, StepOutcome, Worker

__all__ = ["GO_ON", "Session"]

GO_ON = Stopping()


class Session:
    """The steps of a run that are not done yet, on one rank. Every method but `close` is a collective of all
    ranks; the first rank writes metrics, exports and the ends of checkpoints.

    Attributes:
        worker: what takes the steps.
        first_step, max_steps: the steps to take, from 1; none where the first is past the last.
        stopped: why and after which step the run ended early; "" while it has not.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        comm: Communicator,
        worker: Worker,
        *,
        evaluator: Evaluator | None,
        reporter: Reporter,
        restored: Restored,
        stopping: Stopping,
    ) -> None:
        self.worker = worker
        self.first_step = restored.step + 1
        self.max_steps = max_steps = num_steps(resolved, worker.batches)
        self.stopped = ""
        self._resolved = resolved
        self._activity = comm.activity
        self._evaluator = evaluator
        self._reporter = reporter
        self._stopping = stopping
        self._is_first = comm["world"].index == 0
        self._saves = Saves(resolved, worker, reporter, max_steps=max_steps, before_save=self._keep_rows)
        self._rate = learning_rate(
            resolved,
            max_steps=max_steps,
            tokens=lambda: run_tokens(worker.batches, max_steps=max_steps, consumed=restored.consumed),
        )
        self._accounting = Accounting(
            comm, max_seq_length=resolved.data.max_seq_length, consumed=restored.consumed
        )
        self._longest_s = 0.0
        self._step_began = 0.0
        self._wish = ""  # why this rank wanted the run to end
        self._step_done = restored.step
        self._row: dict[str, object] = {}
        self._sinks: list[Sink] = []
        self._closing = ExitStack()

    @classmethod
    def start(
        cls,
        resolved: ResolvedConfig,
        comm: Communicator,
        *,
        reporter: Reporter,
        stopping: Stopping = GO_ON,
        feed: Feed | None = None,
    ) -> Self:
        """Data, model and optimizer in place, where a checkpoint ends or before the first step.

        ``reporter`` is told what there is to know before the first step; ``feed``: where the rows of steps
        come from, if not from the lane's owner. Raises UserError and RunError.
        """
        phases = Phases(reporter, comm.activity)
        candidates = find_candidates(resolved, comm)
        with phases("prepare the data"):
            data = load_data(resolved)
        with phases("build the model"):
            plan = model_plan(resolved, vocab_size=data.vocab_size)
            model = build_model(resolved, plan, comm, data, empty=bool(candidates.folders))
            optimizer = build_optimizer(resolved, model)
        worker = Worker(
            resolved,
            comm,
            data,
            model=model,
            optimizer=optimizer,
            activity=comm.activity,
            tell=reporter.note,
            feed=feed,
        )
        restored = Restored(0, NOTHING, candidates.notes)
        if candidates.folders:
            with phases("load the checkpoint"):
                restored = resume(resolved, comm, worker, candidates)
        with phases("compare ranks and lanes"):
            worker.verify_data(restored.step)
        evaluated = evaluation_rows(resolved, data, lane=worker.batches.lane)
        evaluator = None
        if evaluated is not None:
            evaluator = Evaluator(evaluated, comm, delivery=worker.delivery, model=model)
        session = cls(
            resolved,
            comm,
            worker,
            evaluator=evaluator,
            reporter=reporter,
            restored=restored,
            stopping=stopping,
        )
        metrics, folder = Path(str(resolved.logging.metrics)), model_folder(resolved.checkpoint.dir)
        for fact in [
            *run_facts(resolved, plan, data, model),
            *lane_facts(worker.batches, max_steps=session.max_steps),
            *evaluation_facts(evaluated, every=resolved.train.eval_every),
            *(() if restored.step else replaced_facts(metrics, folder)),
            *beginning_facts(restored, max_steps=session.max_steps),
        ]:
            reporter.note(fact)
        session._open()
        return session

    def _open(self) -> None:
        self._activity.phase = "start-up: opening the metrics file"
        if self._is_first:
            self._sinks = open_sinks(self._resolved, through_step=self.first_step - 1)
            for sink in self._sinks:
                self._closing.callback(sink.close)

    def begin(self) -> None:
        """To be called once, before the first step, where there is one."""
        self.worker.batches.read_ahead(first=self.first_step - 1, last=self.max_steps - 1)
        self._reporter.start(max_steps=self.max_steps, first_step=self.first_step)
        self._stopping.begin()

    def advance(self, step: int) -> Mapping[str, object]:
        """Takes step ``step``, evaluates, writes its row and what is saved after it. Returns the row, equal
        on all ranks but for bytes and waits of the rank. Raises RunError."""
        self._step_began = since = time.monotonic()
        self._row = self._step(step)
        self._step_done = step
        self._saves.after(step, self._accounting.consumed, ends=bool(self.stopped))
        self._longest_s = max(self._longest_s, time.monotonic() - since)
        return self._row

    def evaluate(self) -> Evaluation:
        """The loss on the validation data as the model is now. Raises UserError where there is none."""
        if self._evaluator is None:
            raise UserError("there is no validation data: set data.validation, or data.validation_split")
        return self._evaluator.evaluate("asked for")

    def save(self) -> Path:
        """Saves the run as it is after the last step that was taken; returns once that is complete. Raises
        RunError before the first step."""
        step = self._step_done
        if step == 0:
            raise RunError("there is nothing to save before the first step")
        self._saves.finish()
        self.worker.save(step, self._accounting.consumed)
        self.worker.wait_saved()
        self.worker.poll_save()  # not to be told of it once more
        return checkpoint_folder(Path(self._resolved.checkpoint.dir), step)

    def finish(self) -> Mapping[str, object]:
        """Exports the model, unless the run ended early, waits for the last checkpoint, and returns the
        summary of the run, complete on the first rank."""
        self._activity.phase = "end: closing the metrics file"
        self._closing.close()
        ending = {name: self._row.get(name) for name in ("eval_loss", "eval_tokens")}
        skipped, told = self.worker.batches.left_out()
        summary = {**self._accounting.summary(skipped), **ending, "left out": told}
        self.worker.close()
        places: dict[str, object] = {"metrics": self._resolved.logging.metrics}
        if self.stopped:
            self._saves.finish()
            places["stopped"] = f"{self.stopped}; {self._saves.going_on}"
        else:
            folder = model_folder(self._resolved.checkpoint.dir)
            self.worker.verify_copies()
            self.worker.export(folder)
            self._saves.finish()
            places["model"] = str(folder)
        self._activity.phase = "end: everything is written"
        return {**summary, **self._saves.summary(), **places}

    def settle(self) -> None:
        """Waits for the save under way. Raises RunError where it has failed."""
        self._saves.finish()

    def close(self) -> None:
        """Leaves nothing open, however the run ended. Any number of times."""
        self._closing.close()
        self.worker.close()

    def _step(self, step: int) -> dict[str, object]:
        self._activity.phase = f"step {step}: counting its rows"
        consumed = self._accounting.begin(step, self.worker.batches)
        lr = self._rate.at(consumed.tokens if self._rate.unit == "tokens" else consumed.rows)
        outcome = self.worker.step(step - 1, lr=lr, wish=self._wants_to_end)
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
        if outcome.stops and step < self.max_steps:
            why = self._wish or self._stopping.asked() or "another rank was asked to end"
            self.stopped = f"after step {step} of {self.max_steps} ({why})"
        return row

    def _keep_rows(self) -> None:
        """A run that goes on from a checkpoint finds its rows before it, also after a crash of a machine."""
        for sink in self._sinks:
            sink.sync()

    def _wants_to_end(self) -> bool:
        """Whether this rank wants the run to end after this step, of which the end is near; time is told by
        the first rank's clock alone."""
        longest_s = max(self._longest_s, time.monotonic() - self._step_began)
        need_s = longest_s + self._saves.need_s
        self._wish = self._stopping.reason(need_s=need_s) if self._is_first else self._stopping.asked()
        return bool(self._wish)

    def _evaluated(self, step: int) -> dict[str, object]:
        """What an evaluation after this step adds to its row."""
        due = is_due(step, every=self._resolved.train.eval_every, max_steps=self.max_steps)
        if self._evaluator is None or not due:
            return {}
        found = self._evaluator.evaluate(f"after step {step}")
        return {"eval_loss": found.loss, "eval_tokens": found.tokens}

    def _tell_not_finite(self, outcome: StepOutcome, step: int, *, stops: bool) -> None:
        self._activity.phase = f"step {step}: reporting that it is not finite"
        rows = self.worker.batches.report(step - 1)
        folder = Path(self._resolved.checkpoint.dir) / "nonfinite"
        message = not_finite(folder, outcome, rows, step=step, writes=self._is_first)
        self.worker.meet("the report of a step")  # who stops must not take down the one that writes
        if stops:
            message += "; train.on_nonfinite: skip would go on without this step"
            try:
                self._saves.finish()
            except RunError as error:
                raise RunError(f"{message}\n{error}") from error
            raise RunError(message)
        self._reporter.note(message)
