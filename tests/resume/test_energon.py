"""Whole runs on an Energon data set that stop and go on under other lanes."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from pathlib import Path
from typing import Any

from tests.data.energon.datasets import prepare
from tests.resume.runs import (
    OF_SUMS,
    OF_THE_LAYOUT,
    TIMES,
    assert_equal_bits,
    branch,
    chats,
    config,
    metrics,
    refused,
    started,
    tensors,
    without,
)

VIRTUAL_LANES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = chats(tmp_path_factory.mktemp("energon"))
    prepare(made / "chats.jsonl")
    return made


def given(folder: Path, where: str, directory: Path, **sections: Any) -> dict[str, Any]:
    """Nine steps of eight rows, of 37 an epoch."""
    data = {
        "train": None,
        "source": "energon",
        "path": str(folder / "chats.jsonl"),
        "num_virtual_lanes": VIRTUAL_LANES,
        "packing_window": 4,
    }
    sections["data"] = data | sections.get("data", {})
    sections["train"] = {"max_steps": 9, **sections.get("train", {})}
    return config(folder, where, directory, **sections)


@pytest.fixture(scope="module")
def whole(rank_pool: Any, folder: Path) -> Any:
    """On four lanes, with nothing in between."""
    return started(rank_pool.run, given(folder, "4 W4", folder / "whole"))


def test_it_stops_on_4_lanes_and_goes_on_under_2_and_8(
    ranks: Any, folder: Path, whole: Any, tmp_path: Path
) -> None:
    """Equal sample ids, over the end of an epoch."""
    samples: dict[int, Any] = {}
    for where, stop_after in (("4 W4", 3), ("4 W2 CP2", 3), ("8 W4", None)):
        part = started(ranks, given(folder, where, tmp_path / "run"), stop_after)
        assert len(part.samples) == 3
        samples |= part.samples
    assert samples == whole.samples
    assert {row["epoch"] for rows in samples.values() for row in rows} == {0, 1}
    got, want = metrics(tmp_path / "run"), metrics(folder / "whole")
    assert without(got, (*OF_THE_LAYOUT, *OF_SUMS)) == without(want, (*OF_THE_LAYOUT, *OF_SUMS))
    assert [row["loss"] for row in got] == pytest.approx([row["loss"] for row in want], rel=1e-5)


def test_in_the_same_layout_all_bits_are_the_same(
    ranks: Any, folder: Path, whole: Any, tmp_path: Path
) -> None:
    directory = branch(folder / "whole", tmp_path / "run", step=6)
    after = started(ranks, given(folder, "4 W4", directory))
    assert after.samples == {step: whole.samples[step] for step in (7, 8, 9)}
    assert without(metrics(directory), TIMES) == without(metrics(folder / "whole"), TIMES)
    last = "step-00000009"
    assert_equal_bits(tensors(directory / last), tensors(folder / "whole" / last))


def test_it_is_at_its_end(ranks: Any, folder: Path, whole: Any, tmp_path: Path) -> None:
    directory = branch(folder / "whole", tmp_path / "run", step=9)
    after = started(ranks, given(folder, "4 W2 CP2", directory))
    assert after.rows == []
    assert "nothing is left to train: all 9 steps are done" in after.notes
    assert after.summary["consumed_chats"] == whole.summary["consumed_chats"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_virtual_lanes": 32}, "data.num_virtual_lanes was 16, now it is 32"),
        ({"seed": 1}, "data.seed was 0, now it is 1"),
        ({"source": "chats", "path": None}, "the run was saved with data.source energon, now it is chats"),
    ],
)
def test_another_order_or_source_is_refused(
    ranks: Any, folder: Path, whole: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    directory = branch(folder / "whole", tmp_path / "run", step=6)
    change = {**change, **({"train": str(folder / "chats.jsonl")} if "source" in change else {})}
    if "source" in change:
        change |= {"num_virtual_lanes": 64, "packing_window": 1024}
    made = given(folder, "4 W4", directory, data=change, checkpoint={"allow_changes": ["data.*"]})
    said = refused(ranks, made)
    assert words in said
    assert said.count(words) == 1
