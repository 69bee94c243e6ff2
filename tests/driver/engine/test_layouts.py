"""The controller and its workers in layouts that use every axis: the run of the loop, and every call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rankloom.config import resolve
from rankloom.driver.calls import spec_of
from rankloom.driver.worker import TrainWorker
from tests.driver.engine.spmd import all_calls, run_controlled
from tests.runtime.runs import run, settings, write_chats

W, Q, CP, TP = (
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "tensor_model_parallel_size",
)
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (4, {W: 2, Q: 2}),
    (4, {TP: 2, W: 4, Q: 2}),
    (4, {W: 2, CP: 2}),  # a plain reshape of these ranks does not give the lanes
    (8, {W: 4, Q: 2, CP: 2}),
    (8, {TP: 2, W: 4, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}),
]
SHORT = LAYOUTS[2:4]
SEQUENCES = [[5, 9, 17, 30, 2], [7, 7, 8], list(range(20, 36)), [3, 4], [11], [40, 41, 42, 43, 44, 45]]
OF_A_RANK = ("step_time_s", "tokens_per_second", "loader_wait_s", "comm_bytes")


def config(folder: Path, *, world: int, parallel: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    write_chats(folder / "chats.jsonl")
    made = settings(folder, parallel=parallel, world_size=world, **sections)
    made["data"]["validation_split"] = 0.1
    made["train"]["max_steps"] = 4
    return made


@pytest.mark.parametrize(
    ("world", "parallel"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.long, id=str(case)) for case in LAYOUTS],
)
def test_a_controlled_run_is_the_run_of_the_loop(
    ranks: Any, tmp_path: Path, world: int, parallel: dict[str, Any]
) -> None:
    given = config(tmp_path, world=world, parallel=parallel, checkpoint={"resume": "never"})
    wanted = ranks(world, run, given)[0]
    rows, summary = ranks(world, run_controlled, given)[0]
    assert [_comparable(row) for row in rows] == [_comparable(row) for row in wanted]
    for row, other in zip(rows, wanted, strict=True):
        assert row["comm_bytes"] == {**other["comm_bytes"], "lane": 0}  # rows come from the store
    assert summary["steps"] == 4
    assert summary["model"]
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written == rows


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        pytest.param(*case, marks=pytest.mark.long if case in LAYOUTS[1:3] else (), id=str(case))
        for case in LAYOUTS
    ],
)
def test_all_calls_reach_all_ranks(ranks: Any, tmp_path: Path, world: int, parallel: dict[str, Any]) -> None:
    given = config(tmp_path, world=world, parallel=parallel)
    found = ranks(world, all_calls, given, SEQUENCES, str(tmp_path / "exported"))
    layout = resolve(given).layout
    lanes = [[rank for rank in layout.ranks if layout.lane(rank) == lane] for lane in layout.ranks]
    owners = {min(lane) for lane in lanes if lane}
    declared = {name for name in dir(TrainWorker) if spec_of(getattr(TrainWorker, name)) is not None}
    for rank, there in enumerate(found):
        assert set(there["calls"]) == declared - (set() if rank in owners else {"load_batch"})
    first = found[0]
    assert first["started"] == (1, 4)
    assert first["loaded"] == (2, 4)
    assert first["again"]
    assert first["losses"][0] == first["losses"][1]
    assert [view.rank for view in first["views"]] == list(range(world))
    assert first["evaluation"].tokens > 0
    _check_scores(first, tmp_path / "exported")


def _check_scores(found: Mapping[str, Any], folder: Path) -> None:
    """Against transformers with the weights that were exported then."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    for ids, here, score in zip(SEQUENCES, found["logprobs"], found["scores"], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [0.0, *(float(logits[place, token]) for place, token in enumerate(ids[1:]))]
        np.testing.assert_allclose(here, wanted, atol=2e-5)
        assert score.num_tokens == len(ids) - 1
        assert score.log_likelihood == pytest.approx(sum(wanted), abs=1e-4)


def _comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OF_A_RANK}
