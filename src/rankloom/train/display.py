"""A run on the terminal: start-up phases, notes, a progress bar (or plain lines), a closing summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from rankloom.records.words import counted
from rankloom.train.streams import LossyStream

__all__ = ["SUMMARY_KEYS", "ConsoleReporter"]

# steps: of this run (not those before a resume). skipped_steps: those of them that updated nothing, since the
# loss or the gradient was not finite. loss_first, loss_last: of the first and last of them. consumed_*,
# valid_tokens, epochs: cumulative. padding: the part of all rows that holds no token. filler_rows,
# dropped_rows: empty rows of last batches, and rows of batches that were dropped. records_left_out: by
# reason. loader_wait_s: that steps waited for the first lane's rows. eval_loss, eval_tokens: of the last
# step, or None. time_s: of these steps. checkpoints, checkpoint_s: saved, and seconds that training waited
# for that. dispatch_s: that ranks waited between steps for a driver, where there is one. model, metrics:
# where they are.
SUMMARY_KEYS = (
    "steps",
    "skipped_steps",
    "loss_first",
    "loss_last",
    "consumed_samples",
    "consumed_chats",
    "consumed_tokens",
    "valid_tokens",
    "epochs",
    "padding",
    "filler_rows",
    "dropped_rows",
    "records_left_out",
    "loader_wait_s",
    "eval_loss",
    "eval_tokens",
    "time_s",
    "checkpoints",
    "checkpoint_s",
    "dispatch_s",
    "model",
    "metrics",
)
ROW_COUNTS = (("filler_rows", "empty fillers"), ("dropped_rows", "dropped"))
_NUM_PLAIN_LINES = 20  # about so many lines for the steps of a run that is not shown on a terminal,
_LONGEST_SILENCE_S = 30.0  # and more where steps are slow


class ConsoleReporter:
    """A Reporter for people: progress goes to ``progress`` (stderr), the summary to ``result`` (stdout).

    A context manager: leaving it takes a live display off the terminal, also when the run failed. ``since``
    is when the start-up began (``time.monotonic``); phases are completed to the total with a line for the
    rest. A stream that cannot be written to (any more) is left alone: nothing here ends a run.
    """

    def __init__(
        self, *, progress: Console | None = None, result: Console | None = None, since: float | None = None
    ) -> None:
        self._console = progress or Console(file=_lossy(sys.stderr), highlight=False)
        self._result = result or Console(file=_lossy(sys.stdout), highlight=False, soft_wrap=True)
        self._since = time.monotonic() if since is None else since
        self._in_phases_s = 0.0
        self._first_step, self._max_steps, self._every = 1, 0, 1
        self._last_line_at = 0.0
        self._status: Status | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def phase(self, name: str, seconds: float) -> None:
        self._in_phases_s += seconds
        self._print(f"  {name:<28} {seconds:6.1f} s")

    def note(self, text: str) -> None:
        self._print(text)

    def start(self, *, max_steps: int, first_step: int) -> None:
        total = time.monotonic() - self._since
        if total - self._in_phases_s >= 0.05:
            self.phase("everything else", total - self._in_phases_s)
        self._print(f"  {'start-up':<28} {total:6.1f} s")
        self._take_down()
        self._first_step, self._max_steps = first_step, max_steps
        self._every = max(1, (max_steps - first_step + 1) // _NUM_PLAIN_LINES)
        if self._console.is_terminal:
            self._progress = _progress_bar(self._console)
            self._task = self._progress.add_task("", total=max_steps, completed=first_step - 1, facts="")
            self._progress.start()

    def step(self, metrics: Mapping[str, object]) -> None:
        step = metrics["step"]
        assert isinstance(step, int)
        facts = _facts(metrics)
        if metrics.get("eval_loss") is not None:
            facts += f"  eval loss {metrics['eval_loss']:.4f}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, facts=facts)
            if metrics.get("eval_loss") is not None:
                self._print(f"step {step}/{self._max_steps}  {facts}")
        elif self._deserves_a_line(step) or metrics.get("eval_loss") is not None:
            self._last_line_at = time.monotonic()
            self._print(f"step {step}/{self._max_steps}  {facts}")

    def finish(self, summary: Mapping[str, object]) -> None:
        self._take_down()
        for line in _summary_lines(summary):
            self._result.print(line, markup=False)

    def _deserves_a_line(self, step: int) -> bool:
        if step in (self._first_step, self._max_steps) or step % self._every == 0:
            return True
        return time.monotonic() - self._last_line_at >= _LONGEST_SILENCE_S

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _take_down(self) -> None:
        if self._status is not None:
            self._status.stop()
        if self._progress is not None:
            self._progress.stop()
        self._status = self._progress = None


def _lossy(stream: IO[str] | None) -> IO[str]:
    return cast("IO[str]", LossyStream(stream))


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[facts]}", markup=False),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=console,
    )


def _facts(metrics: Mapping[str, object]) -> str:
    rate = metrics["tokens_per_second"]
    return f"loss {metrics['loss']:.4f}  grad norm {metrics['grad_norm']:.3f}  {rate:,.0f} tokens/s"


def _summary_lines(summary: Mapping[str, object]) -> list[str]:
    lines = []
    if summary.get("steps"):
        time_s, steps = summary["time_s"], cast("int", summary["steps"])
        skipped = summary.get("skipped_steps")
        because = f", {skipped:,} of them skipped because loss or gradient were not finite" if skipped else ""
        lines.append(f"trained {counted(steps, 'step')} in {time_s:,.1f} s{because}")
        lines.append(f"loss     {summary['loss_first']:.4f} -> {summary['loss_last']:.4f}")
    if summary.get("eval_loss") is not None:
        lines.append(f"eval     {summary['eval_loss']:.4f} over {summary['eval_tokens']:,} tokens")
    lines += _count_lines(summary)
    if summary.get("checkpoints"):
        number, waited_s = cast("int", summary["checkpoints"]), summary["checkpoint_s"]
        lines.append(f"saved    {counted(number, 'checkpoint')}; training waited {waited_s:.2f} s for that")
    known = {*SUMMARY_KEYS} - {"model", "metrics"}
    lines += [f"{key:<8} {value}" for key, value in summary.items() if key not in known and value]
    return lines


def _count_lines(summary: Mapping[str, object]) -> Iterator[str]:
    if "consumed_samples" in summary:
        counts = (("samples", "row"), ("chats", "chat"), ("tokens", "token"))
        numbers = [(cast("int", summary.get(f"consumed_{kind}")), one) for kind, one in counts]
        seen = [counted(number, one) for number, one in numbers if number is not None]
        epochs = f" in {summary['epochs']:.2f} epochs" if summary.get("steps") and "epochs" in summary else ""
        yield f"seen     {', '.join(seen)}{epochs}"
    if summary.get("steps") and "padding" in summary:
        padding = f"{summary['padding']:.1%} padding"
        wasted = [f"{summary[key]:,} {words}" for key, words in ROW_COUNTS if summary.get(key)]
        yield f"rows     {', '.join([padding, *wasted])}"
    if summary.get("steps") and "loader_wait_s" in summary:
        wait_s, time_s = summary["loader_wait_s"], summary["time_s"]
        assert isinstance(wait_s, float)
        assert isinstance(time_s, float)
        yield f"waited   {wait_s:.2f} s for rows, {wait_s / time_s:.2%} of the time"
        if "dispatch_s" in summary:
            driver_s = cast("float", summary["dispatch_s"])
            yield f"driver   {driver_s:.2f} s between steps, {driver_s / time_s:.2%} of the time"
