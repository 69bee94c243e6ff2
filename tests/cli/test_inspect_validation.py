"""``rankloom inspect --validation``: the records to evaluate, and the batches that lanes evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.cli.overrides import parse_overrides
from rankloom.config import load
from rankloom.data.prepare import prepare
from rankloom.train.evaluator import evaluation_rows
from tests.cli.inspecting import CHATS, printed, reference, run, shown, write_chats

SPLIT = ("--data.validation_split", "0.5", "--data.seed", "3")


@pytest.fixture
def other(folder: Path) -> tuple[str, str]:
    """The options of a job that evaluates four of the chats."""
    write_chats(folder / "held.jsonl", CHATS[:3] + CHATS[4:5])
    return ("--data.validation", "held.jsonl")


OVERVIEW = """\
Data
 validation: held.jsonl, 4 records, 135 tokens, 38.5% of them evaluated

Batches of an evaluation, 1 to 1 of 1
 batch  rows  fillers  records  tokens  padding  labels
     1     4        1        4     135    47.3%      52
 labels: tokens predicted

Look closer
 rankloom inspect run.yaml --validation --sample 0
   a record, 0 to 3
 rankloom inspect run.yaml --validation --step 1 --lane 0
   what a lane gets: batches of an evaluation 1 to 1, lanes 0 to 1
"""

RECORD = """\
Validation record 3: held.jsonl, line 4
 26 tokens, 16 of them trained
 trained of its 58 characters: 35-57, as the {% generation %} markers of the
 chat template say

  token   text (+ trained)
      0   <|user|>│T│h│a│n│k│s│!│<|end|>│<|assistant|>│
     10 + Y│o│u│ a│r│e│ │w│e│l│c│o│m│e│.│<|end|>│
"""

LANE_TITLE = "Evaluation, batch 1 of 1, lane 1 of 2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--data.max_seq_length", "64"], OVERVIEW), (["--sample", "3"], RECORD), (["--line", "4"], RECORD)],
)
def test_printed(
    arguments: list[str], expected: str, other: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, "--validation", *other, *arguments) == expected.splitlines()


def test_a_batch_says_that_it_is_one(other: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--validation", *other, "--step", "1", "--lane", "1")
    assert lines[0] == LANE_TITLE
    assert any(line.startswith(" held.jsonl, line ") for line in lines)


def test_records_are_what_transformers_makes_of_them(
    other: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for sample, place in enumerate((0, 1, 2, 4)):
        view = printed(capsys, "--validation", *other, "--sample", str(sample))
        assert (view["ids"], view["trained"]) == reference(place)
        assert (view["sample"], view["validation"], view["left_out"]) == (sample, True, "")


LAYOUTS = {
    "two lanes, context 2": {},
    "4 lanes": {"parallel.context_parallel_size": 1, "parallel.tensor_parallel_num_weight_shards": 4},
    "a batch of its own": {"train.eval_batch_size": 2, "data.packing": False},
    "one lane, balanced": {
        "parallel.tensor_model_parallel_size": 2,
        "data.balance": "work",
        "train.micro_batch_size": 2,
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_lanes_get_what_is_evaluated(
    name: str, other: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same arrays as in an evaluation; over all batches and lanes each record once."""
    overrides = [*other, *(word for k, v in LAYOUTS[name].items() for word in (f"--{k}", str(v)))]
    resolved = load("run.yaml", cli=parse_overrides(overrides))
    data = prepare(resolved)
    overview = printed(capsys, "--validation", *overrides)
    assert overview["num_lanes"] == resolved.layout.batch_parallel_size
    names = []
    for lane in range(overview["num_lanes"]):
        rows = evaluation_rows(resolved, data, lane=lane)
        assert rows is not None
        assert overview["num_steps"] == rows.num_batches
        for batch0 in range(rows.num_batches):
            place = ("--step", str(batch0 + 1), "--lane", str(lane))
            view = printed(capsys, "--validation", *overrides, *place)
            want = rows.build(rows.rows(batch0))
            assert [[row["ids"] for row in m] for m in view["microbatches"]] == [
                microbatch.input_ids.tolist() for microbatch in want
            ]
            assert [[row["labels"] for row in m] for m in view["microbatches"]] == [
                microbatch.labels.tolist() for microbatch in want
            ]
            names += [r["name"] for m in view["microbatches"] for row in m for r in row["records"]]
    assert sorted(names) == [f"held.jsonl, line {line}" for line in range(1, 5)]


def test_a_share_of_the_training_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = [place for place in range(6) if printed(capsys, "--sample", str(place), *SPLIT)["left_out"]]
    views = [printed(capsys, "--validation", "--sample", str(n), *SPLIT) for n in range(3)]
    assert [view["name"] for view in views] == [f"chats.jsonl, line {place + 1}" for place in held_out]
    for place in range(6):
        view = printed(capsys, "--validation", "--line", str(place + 1), *SPLIT)
        if place in held_out:
            assert view == views[held_out.index(place)]
        else:
            assert (view["sample"], view["ids"]) == (None, reference(place)[0] if place != 3 else view["ids"])
            assert view["left_out"] == ("not held out for validation (data.validation_split), but trained on")


def test_what_does_not_fit_is_left_out(other: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--data.max_seq_length", "36")
    overview = printed(capsys, "--validation", *other, *short)
    views = [printed(capsys, "--validation", *other, *short, "--sample", str(n)) for n in range(4)]
    assert overview["left_out"] == {"longer than data.max_seq_length": 1}
    assert [view["left_out"] for view in views] == ["", "", "longer than data.max_seq_length 36", ""]
    assert overview["num_records"] == 3
    assert shown(capsys, "--validation", *other, *short)[2] == (
        " left out of validation: 1 record (longer than data.max_seq_length)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                options,
                "there is no validation data: set data.validation, or data.validation_split to a share of "
                "data.train",
            )
            for options in ([], ["--sample", "0"], ["--step", "1"], ["--line", "1"])
        ),
        ([*SPLIT, "--sample", "3"], "--sample 3: a share of chats.jsonl has 3 records, 0 to 2"),
        ([*SPLIT, "--step", "2"], "--step 2: an evaluation has batches 1 to 1"),
        ([*SPLIT, "--step", "1", "--lane", "2"], "--lane 2: the layout has lanes 0 to 1"),
        (
            ["--data.validation", "[chats.jsonl, none.jsonl]", "--sample", "0"],
            "none.jsonl: no such file; data.validation is a JSON Lines file of chats, or \"python-docs\" "
            "(relative paths start at the working directory)",
        ),
        (
            ["--data.validation", "chats.jsonl", "--data.max_seq_length", "8"],
            "chats.jsonl: no record is left to train on (6 longer than data.max_seq_length); the shortest "
            "has 26 tokens and data.max_seq_length is 8",
        ),
    ],
)  # fmt: skip
def test_refusals(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "--validation", *arguments) == (2, "", f"rankloom inspect: {message}\n")


def test_a_validation_set_of_which_nothing_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_chats(folder / "held.jsonl", CHATS[5:])
    options = ("--data.validation", "held.jsonl", "--data.max_seq_length", "40")
    assert run(capsys, "--validation", *options)[2] == (
        "rankloom inspect: held.jsonl: no record is left to evaluate (1 longer than data.max_seq_length); "
        "the shortest has 61 tokens and data.max_seq_length is 40\n"
    )
