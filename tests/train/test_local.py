"""The local engine with stand-ins for the training: every kind of ending, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankloom.errors import RunError, UserError
from rankloom.train import run_local
from rankloom.train.reporting import ForwardingReporter, SilentReporter
from tests.pool import RankPool
from tests.train import runs


@pytest.fixture(autouse=True)
def _forkserver(rank_pool: RankPool) -> None:
    """All tests share the pool's forkserver, which has torch loaded."""


def failure(run: Any, folder: Path, **settings: object) -> str:
    with pytest.raises(RunError) as caught:
        run_local(runs.config(folder, **settings), run=run, reporter=SilentReporter())
    return str(caught.value)


def test_a_run_that_ends_well_is_reported_in_order(tmp_path: Path) -> None:
    events: list[Any] = []
    summary = run_local(runs.config(tmp_path), run=runs.well, reporter=ForwardingReporter(events.append))
    assert [event[0] for event in events] == ["phase", "phase", "note", "start", *["step"] * 3, "finish"]
    assert [event[1][0] for event in events[:3]] == ["start the ranks", "join the others", "1 thread a rank"]
    assert events[-1][1][0] == summary
    assert summary["loss_first"] == 4.0
    assert (tmp_path / "run/logs/rank-2.log").read_text() == "a word from rank 2\n"


def test_an_exception_names_rank_coordinates_phase_and_last_words(tmp_path: Path) -> None:
    message = failure(runs.raise_on_last_rank, tmp_path)
    assert message.startswith("rank 3 (tp 1, gtp_seq 0, gtp_batch 1, ")
    assert "failed in step 3: forward, microbatch 1: ValueError: a bad number (" in message
    assert "runs.py:" in message
    assert "in raise_on_last_rank)" in message
    assert "the last words" in message
    assert "rank-3.log" in message


def test_the_traceback_is_the_cause(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        run_local(runs.config(tmp_path), run=runs.raise_on_last_rank, reporter=SilentReporter())
    assert "in raise_on_last_rank" in str(caught.value.__cause__)


def test_a_killed_rank_is_named_with_the_usual_reason(tmp_path: Path) -> None:
    message = failure(runs.die_on_rank_3, tmp_path)
    assert message.startswith("rank 3 (")
    assert "failed in step 2: backward, microbatch 0: its process was ended by SIGKILL" in message
    assert "host memory" in message


def test_a_rank_that_just_exits_is_named(tmp_path: Path) -> None:
    message = failure(runs.exit_on_rank_1, tmp_path)
    assert message.startswith("rank 1 (")
    assert "exit code 7" in message


def test_a_user_error_of_all_ranks_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        run_local(runs.config(tmp_path), run=runs.refuse_on_all, reporter=SilentReporter())
    assert str(caught.value) == "chats.jsonl, line 3: not valid JSON"


def test_a_hung_rank_is_named_by_the_watchdog(tmp_path: Path) -> None:
    message = failure(runs.hang_on_last_rank, tmp_path, **{"comm.timeout_s": 0.6})
    assert "rank 3 (tp 1, gtp_seq 0, gtp_batch 1, " in message
    assert "did not arrive; it is in step 4: forward, microbatch 0, at " in message
    assert "in read_forever" in message


@pytest.mark.long
def test_a_stopped_rank_is_named_and_does_not_stay(tmp_path: Path) -> None:
    assert "shows no sign of life" in failure(runs.stop_on_rank_2, tmp_path, **{"comm.timeout_s": 0.6})
