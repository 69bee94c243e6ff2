"""``rankloom inspect`` of an Energon data set: its samples, and the rows that lanes make of them."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rankloom.records.energon import EnergonData
from tests.cli.inspecting import printed, run, shown
from tests.data.energon import datasets

NUM_SAMPLES, BAD, LONG = 60, 5, 7
Capture = pytest.CaptureFixture[str]


def contents() -> list[object]:
    """Sample 5 has no answer, sample 7 is long."""
    found: list[Any] = [datasets.chat(number) for number in range(NUM_SAMPLES)]
    found[BAD] = {"messages": [{"role": "user", "content": "number 5"}]}
    found[LONG]["messages"][1]["content"] = "fox " * 130
    return found


@pytest.fixture(params=[datasets.jsonl, datasets.webdataset], ids=["jsonl", "tars"])
def options(request: pytest.FixtureRequest, folder: Path) -> list[str]:
    """Of a job on such a data set: 2 lanes, 4 virtual ones."""
    make: Callable[..., EnergonData] = request.param
    data = make(folder / "made", contents()) if not (folder / "made").mkdir() else None
    assert data is not None
    settings = {
        "data.source": "energon",
        "data.train": "null",
        "data.path": data.path,
        "data.num_virtual_lanes": 4,
        "data.bad_records": "skip",
        "data.packing_window": 8,
        "train.epochs": "null",
        "train.max_steps": 12,
    }
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def reference(number: int) -> tuple[list[int], list[bool]]:
    """Ids and mask of a sample by transformers alone."""
    made: Any = AutoTokenizer.from_pretrained("model").apply_chat_template(
        contents()[number]["messages"],  # type: ignore[index]
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return made["input_ids"], [bool(flag) for flag in made["assistant_masks"]]


def number_of(name: str) -> int:
    """Of a sample: its key is its number."""
    return int(name.split(", sample ")[1])


def test_lanes_share_every_sample_once_an_epoch(options: list[str], capsys: Capture) -> None:
    seen: dict[int, list[int]] = {}
    rows_seen = []
    overview = printed(capsys, *options)
    for step in range(1, 13):
        counts = [0, 0]
        for lane in range(2):
            view = printed(capsys, *options, "--step", str(step), "--lane", str(lane))
            assert (view["step"], view["num_steps"], view["lane"], view["num_lanes"]) == (step, 12, lane, 2)
            for row in (row for microbatch in view["microbatches"] for row in microbatch):
                assert row["row"] % 2 == lane
                assert row["virtual_lane"] == row["row"] % 4
                check_row(row)
                rows_seen.append(row["row"])
                numbers = [number_of(record["name"]) for record in row["records"]]
                seen.setdefault(row["epoch"], []).extend(numbers)
                counts[0] += row["num_tokens"]
                counts[1] += sum(label != -100 for label in row["labels"])
        if step <= len(overview["first_steps"]):
            told = overview["first_steps"][step - 1]
            assert [told["tokens"], told["labels"]] == counts
    assert sorted(rows_seen) == list(range(48))
    assert sorted(seen[0]) == [n for n in range(NUM_SAMPLES) if n not in (BAD, LONG)]
    assert max(seen) >= 1


def check_row(row: Any) -> None:
    ids: list[int] = []
    positions: list[int] = []
    documents: list[int] = []
    trained: list[bool] = []
    for document, record in enumerate(row["records"]):
        its_ids, its_mask = reference(number_of(record["name"]))
        assert (record["start"], record["stop"]) == (len(ids), len(ids) + len(its_ids))
        assert record["labels"] == sum(its_mask)
        ids += its_ids
        trained += its_mask
        positions += range(len(its_ids))
        documents += [document] * len(its_ids)
    padding = 128 - len(ids)
    assert row["num_tokens"] == len(ids)
    assert row["ids"][: len(ids)] == ids
    assert row["trained"] == trained + [False] * padding
    assert row["positions"] == positions + list(range(padding))
    assert row["documents"] == documents + [len(row["records"])] * padding


def test_what_is_printed(options: list[str], capsys: Capture) -> None:
    lines = shown(capsys, *options, "--step", "2", "--lane", "1")
    assert lines[0] == "Step 2 of 12, lane 1 of 2"
    headings = ("microbatch", "row", "virtual lane", "epoch", "records", "tokens", "padding", "labels")
    assert lines[3].split() == " ".join(headings).split()
    assert [line.split()[1:4] for line in lines[4:6]] == [["5", "1", "0"], ["7", "3", "0"]]
    overview = " ".join(line.strip() for line in shown(capsys, *options))
    assert "60 samples, through Energon rows: of 128 tokens, greedy; 4 virtual lanes, 2 for each" in overview
    assert "a record, 0 to 59" in overview
    left_out = printed(capsys, *options)["left_out"]
    assert set(left_out) == {"no assistant turn", "longer than data.max_seq_length"}
    assert f"left out so far: {sum(left_out.values())} samples (" in overview


@pytest.mark.parametrize("packing", ["none", pytest.param("greedy", marks=pytest.mark.long)])
def test_an_epoch_is_estimated(packing: str, options: list[str], capsys: Capture) -> None:
    options = [*options, "--data.packing", packing, "--train.max_steps", "16"]
    (told,) = [fact for fact in printed(capsys, *options)["facts"] if fact.startswith("an epoch: about ")]
    rows = int(told.split()[3])
    steps = round(rows / 4)
    assert told == f"an epoch: about {rows} rows, {steps} steps of 4 (judged by the samples read so far)"
    epochs: dict[int, int] = {}
    for step in range(1, 17):
        for lane in ("0", "1"):
            view = printed(capsys, *options, "--step", str(step), "--lane", lane)
            for row in (row for microbatch in view["microbatches"] for row in microbatch):
                epochs[row["epoch"]] = epochs.get(row["epoch"], 0) + 1
    assert max(epochs) >= 1
    assert abs(rows - epochs[0]) <= 3


def test_a_sample_is_what_transformers_makes_of_it(options: list[str], capsys: Capture) -> None:
    for number in (0, 31, 59):
        view = printed(capsys, *options, "--sample", str(number))
        assert (view["ids"], view["trained"]) == reference(number)
        assert (view["sample"], view["left_out"], view["validation"]) == (number, "", False)
        assert number_of(view["name"]) == number
        place = view["name"].replace(", sample ", ":")
        assert view == printed(capsys, *options, "--line", place)
        assert view == printed(capsys, *options, "--line", place.split(":")[1])


def test_samples_that_are_left_out(options: list[str], capsys: Capture) -> None:
    assert shown(capsys, *options, "--sample", "5")[1] == " left out: no assistant turn: roles are user"
    assert shown(capsys, *options, "--sample", "7")[1] == " left out: longer than data.max_seq_length 128"
    cut = printed(capsys, *options, "--sample", "7", "--data.overlong", "truncate")
    assert (cut["left_out"], cut["num_kept"]) == ("", 128)


def test_refusals(options: list[str], capsys: Capture) -> None:
    def refusal(*arguments: str) -> str:
        code, out, err = run(capsys, *options, *arguments)
        assert (code, out) == (2, "")
        return err.removeprefix("rankloom inspect: ").rstrip()

    path = options[options.index("--data.path") + 1]
    assert refusal("--sample", "60") == f"--sample 60: {path} has 60 samples, 0 to 59"
    assert refusal("--step", "13") == "--step 13: the run has steps 1 to 12"
    assert refusal("--step", "0", "--train.max_steps", "null") == "--step 0: the run has steps 1, 2 and so on"
    assert refusal("--step", "1", "--lane", "2") == "--lane 2: the layout has lanes 0 to 1"
    assert refusal("--line", "none:3") == (
        f"--line none:3: {path} has no such sample; write the file and the key that messages name, FILE:KEY"
    )
    assert refusal("--data.path", "null").startswith("data.source energon: set data.path to a data set")
    assert refusal("--data.path", "null", "--validation", "--data.validation", "chats.jsonl", "--model.path",
                   "null").startswith("data.source energon: set data.path")  # fmt: skip


def test_a_sample_without_a_chat_part(folder: Path, capsys: Capture) -> None:
    (folder / "made").mkdir()
    data = datasets.webdataset(folder / "made", [datasets.chat(n) for n in range(4)], part="txt")
    options = ("--data.source", "energon", "--data.train", "null", "--data.path", data.path)
    code, _, err = run(capsys, *options, "--data.num_virtual_lanes", "2", "--sample", "2")
    assert code == 2
    assert 'shard_000.tar, sample 000002: has no part "json" with a chat; its parts are txt' in err


def test_validation_data_beside_it(options: list[str], capsys: Capture) -> None:
    """Chats of a file, with the tokenizer of the run, also where that is trained on the data set."""
    for model in ([], ["--model.path", "null", "--model.config", "{model_type: llama, vocab_size: 300}"]):
        both = [*options, *model, "--data.validation", "chats.jsonl", "--validation"]
        overview = printed(capsys, *both)
        assert (overview["num_samples"], overview["num_steps"]) == (6, 1)
        names = []
        for lane in ("0", "1"):
            view = printed(capsys, *both, "--step", "1", "--lane", lane)
            names += [r["name"] for m in view["microbatches"] for row in m for r in row["records"]]
        assert sorted(names) == [f"chats.jsonl, line {line}" for line in range(1, 7)]
        assert printed(capsys, *both, "--sample", "0")["text"].startswith("<|system|>Answer briefly.")
    code, out, _ = run(capsys, *options, "--data.validation", "chats.jsonl", "--json")
    assert code == 0
    assert any(fact.startswith("validation: chats.jsonl, 6 records, ") for fact in json.loads(out)["facts"])
