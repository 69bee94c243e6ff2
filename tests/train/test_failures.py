from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from rankloom.train.failures import FailureKind, FailureRecord, RankExit, first_cause, to_error

LAYOUT = GTPParallelLayout.resolve(world_size=4)


def record(error: BaseException, rank: int = 0) -> FailureRecord:
    return FailureRecord.of(error, rank=rank, phase="step 1", place="a.py:1 in f")


def failed(error: BaseException, rank: int) -> RankExit:
    return RankExit(rank, 1, record=record(error, rank))


LOST = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    ("cause", "others"),
    [
        (failed(ValueError("bad"), 3), [failed(LOST, 0), failed(LOST, 1)]),
        (RankExit(2, -9), [failed(LOST, 0)]),
        (failed(UserError("no file"), 1), [RankExit(0, -9), failed(ValueError("bad"), 2)]),
        (RankExit(1, 3), [failed(LOST, 0)]),
        (RankExit(1, -9), [failed(ValueError("later"), 2)]),
    ],
)
def test_the_cause_outranks_what_follows_from_it(cause: RankExit, others: list[RankExit]) -> None:
    assert first_cause([cause, *others]) is cause
    if all(other.priority > cause.priority for other in others):
        assert first_cause([*others, cause]) is cause


def test_a_lost_connection_behind_another_error_still_follows() -> None:
    error = RuntimeError("the gather failed")
    error.__cause__ = LOST
    assert record(error).kind is FailureKind.FOLLOW_UP


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.failure"
    assert FailureRecord.read(file) is None
    written = record(ValueError("bad"))
    written.write(file)
    assert FailureRecord.read(file) == written


def test_a_run_error_is_the_whole_message() -> None:
    error = to_error(failed(RunError("rank 2: its tp group differs"), 2), LAYOUT)
    assert (type(error), str(error)) == (RunError, "rank 2: its tp group differs")


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [(-9, "SIGKILL; if nobody did that, the machine ran out"), (-6, "ended by SIGABRT"), (4, "exit code 4")],
)
def test_an_end_without_a_record_is_explained(exitcode: int, words: str) -> None:
    message = str(
        to_error(RankExit(1, exitcode, phase="step 2", output="one\ntwo\n", log="rank-1.log"), LAYOUT)
    )
    assert message.startswith("rank 1 (tp 0, ")
    assert words in message
    assert message.endswith("\nthe last it printed:\n  one\n  two\nits log: rank-1.log")


def test_a_traceback_stays_in_the_log() -> None:
    exits = RankExit(0, 1, phase="step 2", record=record(ValueError("bad")), log="rank-0.log")
    assert exits.record is not None
    message = str(to_error(replace(exits, output=f"one\n{exits.record.trace}"), LAYOUT))
    assert message.splitlines()[1:] == ["the last it printed:", "  one", "its log: rank-0.log"]
