from __future__ import annotations

import io
import re
import time

from rich.console import Console

from rankloom.train import ConsoleReporter
from tests.train import runs


def shown(*, terminal: bool, num_steps: int = 3, first_step: int = 1) -> tuple[str, str]:
    """What a run puts on stderr and on stdout."""
    progress = Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)
    result = Console(file=io.StringIO(), width=120, highlight=False)
    with ConsoleReporter(progress=progress, result=result, since=time.monotonic() - 10) as reporter:
        reporter.phase("start the ranks", 4.0)
        reporter.phase("load the data", 5.0)
        reporter.note("12 records [too long: 3]")
        reporter.start(max_steps=num_steps, first_step=first_step)
        for step in range(first_step, num_steps + 1):
            reporter.step(runs.metrics(step))
        reporter.finish(
            {
                "steps": num_steps,
                "loss_first": 4.0,
                "loss_last": 1.25,
                "consumed_samples": 1200,
                "consumed_tokens": 34567,
                "time_s": 61.25,
                "model": "runs/demo/model",
                "metrics": "runs/demo/metrics.jsonl",
            }
        )
    return progress.file.getvalue(), result.file.getvalue()  # type: ignore[attr-defined]


def test_phases_sum_to_the_start_up() -> None:
    progress, _ = shown(terminal=False)
    seconds = dict(re.findall(r"^  (.+?) +([\d.]+) s$", progress, re.MULTILINE))
    total = float(seconds.pop("start-up"))
    assert set(seconds) == {"start the ranks", "load the data", "everything else"}
    assert abs(sum(map(float, seconds.values())) - total) <= 0.1
    assert "12 records [too long: 3]\n" in progress


def test_steps_are_plain_lines_where_there_is_no_terminal() -> None:
    progress, _ = shown(terminal=False)
    assert "step 1/3  loss 4.0000  grad norm 1.000  1,234 tokens/s\n" in progress
    assert "\x1b" not in progress


def test_many_steps_are_few_lines_with_the_first_and_the_last() -> None:
    lines = [
        line for line in shown(terminal=False, num_steps=1000)[0].splitlines() if line.startswith("step")
    ]
    assert len(lines) <= 22
    assert lines[0].startswith("step 1/")
    assert lines[-1].startswith("step 1000/")


def test_a_resumed_run_shows_its_first_step() -> None:
    assert "step 501/1000" in shown(terminal=False, num_steps=1000, first_step=501)[0]


def test_a_terminal_gets_a_bar() -> None:
    progress, _ = shown(terminal=True)
    assert "3/3" in progress
    assert "loss 1.3333" in progress


def test_skipped_steps_are_in_the_summary() -> None:
    result = Console(file=io.StringIO(), width=120, highlight=False)
    summary = {"steps": 4, "skipped_steps": 3, "loss_first": 4.0, "loss_last": 1.0, "time_s": 2.0}
    ConsoleReporter(progress=result, result=result).finish(summary)
    line = result.file.getvalue().splitlines()[0]  # type: ignore[attr-defined]
    assert line == "trained 4 steps in 2.0 s, 3 of them skipped because loss or gradient were not finite"


def test_an_evaluation_is_shown_whenever_it_was_made() -> None:
    for terminal in (False, True):
        out = Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)
        with ConsoleReporter(progress=out, result=out) as reporter:
            reporter.start(max_steps=1000, first_step=1)
            for step in range(1, 8):
                reporter.step(
                    runs.metrics(step) | ({"eval_loss": 2.5, "eval_tokens": 9} if step == 7 else {})
                )
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert "step 7/1000  loss 0.5714  grad norm 1.000  1,234 tokens/s  eval loss 2.5000\n" in text


def test_the_summary_of_a_whole_run() -> None:
    out = Console(file=io.StringIO(), width=120, highlight=False)
    summary = {
        "steps": 4,
        "loss_first": 4.0,
        "loss_last": 1.0,
        "eval_loss": 2.5,
        "eval_tokens": 1234,
        "consumed_samples": 30,
        "consumed_chats": 41,
        "consumed_tokens": 5000,
        "epochs": 1.25,
        "padding": 0.0371,
        "filler_rows": 2,
        "dropped_rows": 0,
        "records_left_out": {"too long": 3},
        "loader_wait_s": 0.125,
        "dispatch_s": 0.5,
        "time_s": 50.0,
        "left out": "3 records (3 too long)",
        "model": "m",
    }
    ConsoleReporter(progress=out, result=out).finish(summary)
    assert out.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "trained 4 steps in 50.0 s",
        "loss     4.0000 -> 1.0000",
        "eval     2.5000 over 1,234 tokens",
        "seen     30 rows, 41 chats, 5,000 tokens in 1.25 epochs",
        "rows     3.7% padding, 2 empty fillers",
        "waited   0.12 s for rows, 0.25% of the time",
        "driver   0.50 s between steps, 1.00% of the time",
        "left out 3 records (3 too long)",
        "model    m",
    ]


def test_the_summary() -> None:
    assert shown(terminal=False)[1].splitlines() == [
        "trained 3 steps in 61.2 s",
        "loss     4.0000 -> 1.2500",
        "seen     1,200 rows, 34,567 tokens",
        "model    runs/demo/model",
        "metrics  runs/demo/metrics.jsonl",
    ]
