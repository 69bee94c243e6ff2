"""Where a run stands when it goes on: learning rate, counts and samples, with exact numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankloom.checkpoint import read_manifest
from tests.resume.runs import CP, TP, W, chats, config, metrics, refused, started
from tests.runtime.runs import write_chats

LONG = pytest.mark.long


def made(folder: Path, world: int, parallel: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """`config` in a layout that has no name there."""
    given = config(folder, "1", folder / "run", **sections)
    return {**given, "parallel": parallel, "cluster": {**given["cluster"], "world_size": world}}


@pytest.mark.parametrize(
    "schedule",
    [
        {"decay": "cosine", "warmup_samples": 40},
        pytest.param({"decay": "linear", "warmup_samples": 0, "warmup_tokens": 900}, marks=pytest.mark.long),
        pytest.param({"decay": "wsd", "warmup_samples": 8, "wsd_decay_samples": 100}, marks=pytest.mark.long),
    ],
    ids=lambda schedule: schedule["decay"],
)
def test_the_rate_of_step_51_after_a_save_at_50(ranks: Any, tmp_path: Path, schedule: Any) -> None:
    """The schedule is neither applied twice nor restarted: not one bit differs."""
    chats(tmp_path)
    sections = {
        "data": {"max_seq_length": 48},
        "train": {"max_steps": 55, "global_batch_size": 4},
        "schedule": schedule,
        "checkpoint": {"save_every": 50},
    }
    given = made(tmp_path, 1, {}, **sections)
    whole = started(ranks, given)
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == [
        "step-00000050",
        "step-00000055",
    ]
    given["checkpoint"]["resume"] = str(tmp_path / "run/step-00000050")
    given["checkpoint"]["dir"] = str(tmp_path / "again")
    after = started(ranks, given)
    assert after.rows[0]["step"] == 51
    assert after.rows[0]["lr"] == whole.rows[50]["lr"]
    assert [row["lr"] for row in after.rows] == [row["lr"] for row in whole.rows[50:]]
    assert len({row["lr"] for row in whole.rows[50:]}) == 5


def test_doubling_the_global_batch_is_said_with_both_values(ranks: Any, tmp_path: Path) -> None:
    chats(tmp_path)
    before = started(ranks, made(tmp_path, 2, {W: 2}, train={"max_steps": 3}))
    assert before.rows[-1]["consumed_samples"] == 24
    given = made(tmp_path, 2, {W: 2}, train={"max_steps": 5, "global_batch_size": 16})
    after = started(ranks, given)
    said = [note for note in after.notes if "train.global_batch_size" in note]
    assert said == ["train.global_batch_size was 8, now it is 16; rows are cut so from here on"]
    assert "changed: train.max_steps was 3, now it is 5" in after.notes
    assert [row["consumed_samples"] for row in after.rows] == [40, 44]
    assert [row["row"] for row in after.samples[4]] == list(range(24, 40))
    assert [row["consumed_samples"] for row in metrics(tmp_path / "run")] == [8, 16, 24, 40, 44]


def test_more_steps_go_on_and_no_fewer_are_taken_back(ranks: Any, tmp_path: Path) -> None:
    chats(tmp_path)
    keep_rate = {"schedule": {"decay_samples": 80}}
    started(ranks, made(tmp_path, 1, {}, train={"max_steps": 3}, **keep_rate))
    more = started(ranks, made(tmp_path, 1, {}, train={"max_steps": 5}, **keep_rate))
    assert [note for note in more.notes if note.startswith("changed: ")] == [
        "changed: train.max_steps was 3, now it is 5"
    ]
    assert [row["step"] for row in more.rows] == [4, 5]
    for steps, words in ((5, "all 5 steps are done"), (4, "step 5 is past the last one, 4")):
        again = started(ranks, made(tmp_path, 1, {}, train={"max_steps": steps}, **keep_rate))
        assert f"nothing is left to train: {words}" in again.notes
        assert again.rows == []
        assert again.summary["consumed_samples"] == 40
        assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_each_lane_has_its_own_place(ranks: Any, tmp_path: Path) -> None:
    """Four lanes of weight shards, saved after step 5 and gone on with; the same rows as without a stop."""
    chats(tmp_path)
    sections = {"train": {"max_steps": 7, "global_batch_size": 4}, "checkpoint": {"save_every": 5}}
    given = made(tmp_path, 4, {W: 4}, **sections)
    whole = started(ranks, given)
    manifest = read_manifest(tmp_path / "run/step-00000005")
    lanes = [manifest.rank_state[rank] for rank in sorted(manifest.rank_state)]
    assert [(state["lane"], state["num_lanes"], state["step"]) for state in lanes] == [
        (0, 4, 5), (1, 4, 5), (2, 4, 5), (3, 4, 5),
    ]  # fmt: skip
    assert [state["last_row"] for state in lanes] == [16, 17, 18, 19]
    given["checkpoint"] |= {"resume": str(tmp_path / "run/step-00000005"), "dir": str(tmp_path / "again")}
    assert started(ranks, given).samples == {step: whole.samples[step] for step in (6, 7)}


def test_two_lanes_of_tensor_and_context_ranks_have_two_states(ranks: Any, tmp_path: Path) -> None:
    chats(tmp_path)
    started(ranks, made(tmp_path, 8, {TP: 2, CP: 2}, train={"max_steps": 3, "micro_batch_size": 2}))
    manifest = read_manifest(tmp_path / "run/step-00000003")
    states = {rank: state["lane"] for rank, state in manifest.rank_state.items()}
    assert states == {0: 0, 4: 1}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 2), pytest.param(2, 4, marks=pytest.mark.long)])
def test_sixteen_samples_in_batches_of_four(ranks: Any, tmp_path: Path, before: int, after: int) -> None:
    """Each of them once, though the lanes change after the first four."""
    write_chats(tmp_path / "chats.jsonl", count=16)
    sections = {
        "data": {"packing": False},
        "train": {"max_steps": 4, "global_batch_size": 4},
        "checkpoint": {"save_every": 1},
    }
    first = started(ranks, made(tmp_path, before, {}, **sections), 1)
    assert [row["row"] for row in first.samples[1]] == [0, 1, 2, 3]
    then = started(ranks, made(tmp_path, after, {}, **sections))
    assert [row["row"] for row in then.samples[2]] == [4, 5, 6, 7]
    rows = [row for part in (first, then) for rows in part.samples.values() for row in rows]
    seen = [name for row in rows for name in row["records"]]
    assert sorted(seen) == sorted(f"{tmp_path / 'chats.jsonl'}, line {line}" for line in range(1, 17))
    lanes = [f"{n} lane{'s' * (n > 1)}" for n in (before, after)]
    assert f"the data was saved with {lanes[0]}, now there are {lanes[1]}: rows are dealt anew" in then.notes


def test_other_data_is_refused_with_both_names(ranks: Any, tmp_path: Path) -> None:
    chats(tmp_path)
    write_chats(tmp_path / "others.jsonl", count=100, seed=6)
    started(ranks, made(tmp_path, 2, {W: 2}, train={"max_steps": 3}))
    given = made(tmp_path, 2, {W: 2}, data={"train": str(tmp_path / "others.jsonl")})
    said = refused(ranks, given)
    assert said.startswith(
        f"{tmp_path}/run/step-00000003: the run cannot continue in its data: it was saved with the data "
        f"{tmp_path}/chats.jsonl (120 records, fingerprint "
    )
    assert f"), now it is {tmp_path}/others.jsonl (100 records, fingerprint " in said
    assert said.endswith("or name data.train in checkpoint.allow_changes to begin the data anew")
    given["checkpoint"]["allow_changes"] = ["data.train"]
    after = started(ranks, given)
    assert f"changed: data.train was {tmp_path}/chats.jsonl, now it is {tmp_path}/others.jsonl" in after.notes
    assert any(note.startswith("the data is started anew with epoch 1: ") for note in after.notes)
    assert {row["epoch"] for row in after.samples[4]} == {1}
    assert [row["consumed_samples"] for row in after.rows] == [32, 40, 48]


def test_a_file_of_the_same_name_with_another_line(ranks: Any, tmp_path: Path) -> None:
    chats(tmp_path)
    given = made(tmp_path, 1, {}, train={"max_steps": 3})
    started(ranks, given)
    lines = (tmp_path / "chats.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "chats.jsonl").write_text("".join(lines[1:2] + lines[1:]))
    said = refused(ranks, {**given, "train": {**given["train"], "max_steps": 6}})
    assert said.count("(120 records, fingerprint ") == 2
    assert ") of another content, tokenizer or template. Set it back" in said


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("data", "seed", 1, "data.seed was 0, now it is 1"),
        ("data", "packing", False, "data.packing was greedy, now it is none"),
        pytest.param("data", "max_seq_length", 64, "data.max_seq_length was 96, now it is 64", marks=LONG),
        pytest.param("data", "train_on", "all", "data.train_on was all_turns, now it is all", marks=LONG),
    ],
)
def test_another_order_is_refused(
    ranks: Any, tmp_path: Path, section: str, key: str, value: Any, told: str
) -> None:
    """Whatever the reason, it is told once."""
    chats(tmp_path)
    started(ranks, made(tmp_path, 1, {}, train={"max_steps": 3}))
    said = refused(ranks, made(tmp_path, 1, {}, **{section: {key: value}}))
    assert said.startswith(f"{tmp_path}/run/step-00000003: the run cannot continue in its data: ")
    assert said.count(told) == 1
    assert said.count(f"{section}.{key} was ") == 1


def test_another_seed_of_the_model_changes_nothing(ranks: Any, tmp_path: Path) -> None:
    """It is used for the first weights alone."""
    chats(tmp_path)
    whole = started(ranks, made(tmp_path, 1, {}, checkpoint={"dir": str(tmp_path / "whole")}))
    started(ranks, made(tmp_path, 1, {}, train={"max_steps": 3}, schedule={"decay_samples": 48}))
    after = started(ranks, made(tmp_path, 1, {}, train={"seed": 8}, schedule={"decay_samples": 48}))
    assert [row["loss"] for row in after.rows] == [row["loss"] for row in whole.rows[3:]]
