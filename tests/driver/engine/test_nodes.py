"""Several Ray nodes on this machine: one is killed, and the run goes on, elsewhere or with fewer ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.runs import run, settings, write_chats
from tests.train.processes import Launch

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("num_spare", "ranks_after"), [(0, 2), (1, 4)])
def test_a_lost_node(ranks: Any, tmp_path: Path, num_spare: int, ranks_after: int) -> None:
    write_chats(tmp_path / "chats.jsonl")
    whole = settings(tmp_path, parallel={"tensor_parallel_num_weight_shards": 2}, world_size=4)
    whole["train"]["max_steps"] = 6
    whole["checkpoint"]["dir"] = str(tmp_path / "whole")
    wanted = ranks(4, run, whole)[0]
    launched = Launch(str(tmp_path), "2", str(num_spare), module="tests.driver.engine.node_loss")
    code, out, err = launched.end(timeout_s=400)
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert len(told["nodes"]) == ranks_after
    assert told["killed"] not in told["nodes"]
    [note] = [note for note in told["notes"] if "restart 1 of 1" in note]
    assert "its node was lost (it no longer answers), and with it ranks 2, 3" in note
    assert f"restart 1 of 1, on {ranks_after} ranks of" in note
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in wanted], rel=1e-5)
