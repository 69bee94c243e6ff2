"""Lanes that get wrong rows, few rows, or none: named, said before the start, trained through."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.data import LaneLoader, TokenizedDataset
from rankloom.data.delivery import check_lanes
from rankloom.data.prepare import prepare
from rankloom.errors import RunError
from rankloom.layout import GTPParallelLayout
from rankloom.train.loop import run_connected
from tests.data.chats import dataset, stream
from tests.parity.reference import reference
from tests.runtime.runs import Recorder, settings, write_chats
from tests.runtime.runs import run as run_on_rank

TP, W, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "context_parallel_size",
)


def checked(rank: int, world_size: int, lanes: dict[int, int]) -> tuple[str, list[list[int]]]:
    """The start-up check of TP 2, CP 2 (two lanes), where some ranks believe in another lane's rows; its
    refusal, and the records that this rank would train on in both steps."""
    layout = GTPParallelLayout.resolve(world_size=world_size, **{TP: 2, CP: 2})
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=30)
    rows = stream(dataset([3] * 8), global_batch_size=4)
    lane = layout.lane(rank)
    loader = LaneLoader(rows, rows.dataset, lane=lanes.get(rank, lane), num_lanes=2, micro_batch_size=1)
    mine = [row for microbatch in loader.rows(0) for row in microbatch]
    message = ""
    try:
        check_lanes(comm, rows, mine, lane=lane, step0=0)
    except RunError as error:
        message = str(error)
    seen = [
        [record for microbatch in loader.rows(s) for row in microbatch for record in row.records]
        for s in (0, 1)
    ]
    comm.close()
    return message, seen


def test_the_ranks_of_a_lane_agree_and_lanes_are_disjoint(ranks: Any) -> None:
    """8 samples on TP 2 x CP 2 x 2 lanes: four ranks each with the same ones, together 0..7 once."""
    results = ranks(8, checked, {})
    assert {message for message, _ in results} == {""}
    layout = GTPParallelLayout.resolve(world_size=8, **{TP: 2, CP: 2})
    by_lane = [[seen for rank, (_, seen) in enumerate(results) if layout.lane(rank) == k] for k in (0, 1)]
    assert [len(lane) for lane in by_lane] == [4, 4]
    assert all(seen == lane[0] for lane in by_lane for seen in lane)
    assert sorted(record for lane in by_lane for step in lane[0] for record in step) == list(range(8))


def test_a_rank_with_the_rows_of_another_lane_is_named(ranks: Any) -> None:
    """Rank 3 (lane 0) holds what lane 1 has."""
    for message, _ in ranks(8, checked, {3: 1}):
        assert message == "ranks 0 and 3 are in lane 0 but hold rows [0, 2] and [1, 3]"


def test_a_lane_with_the_rows_of_another_is_named(ranks: Any) -> None:
    """All ranks of lane 1 take the rows of lane 0."""
    layout = GTPParallelLayout.resolve(world_size=8, **{TP: 2, CP: 2})
    wrong = {rank: 0 for rank in range(8) if layout.lane(rank) == 1}
    for message, _ in ranks(8, checked, wrong):
        assert message == (
            "the lanes together (first ranks [0, 4]) hold rows [0, 0, 2, 2], the global batch has "
            "[0, 1, 2, 3]"
        )


def three_chats(folder: Path) -> None:
    lines = [
        json.dumps({"messages": [{"role": "user", "content": u}, {"role": "assistant", "content": a}]})
        for u, a in (("sun", "moon and river"), ("stone", "leaf"), ("tide", "hill lark fern"))
    ]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")


def three(folder: Path, **sections: Any) -> dict[str, Any]:
    """3 samples, a global batch of 4, 4 lanes that share each weight."""
    three_chats(folder)
    config = settings(
        folder,
        parallel={W: 4},
        world_size=4,
        data={"packing": False, **sections.get("data", {})},
        train={"global_batch_size": 4, "max_steps": None, "epochs": 1, **sections.get("train", {})},
    )
    config["schedule"] = {"warmup_samples": 0}
    return config


def whole_run(rank: int, world_size: int, config: dict[str, Any]) -> tuple[list[Any], list[str], Any]:
    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder = Recorder()
    summary = run_connected(resolved, comm, reporter=recorder)
    comm.close()
    return recorder.rows, recorder.notes, summary


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("parallel", [{W: 4}, {}], ids=["shared_weights", "own_weights"])
def test_a_lane_with_an_empty_filler_alone(
    ranks: Any, tmp_path: Path, parallel: dict[str, int], num_workers: int
) -> None:
    config = three(tmp_path, data={"num_workers": num_workers})
    config["parallel"] = parallel
    results = ranks(4, whole_run, config, timeout_s=90)
    for rows, _, _ in results:
        assert [row["consumed_samples"] for row in rows] == [3]
        assert rows[0]["loss"] == results[0][0][0]["loss"]
    (row,), notes, summary = results[0]
    assert "last batch of epoch 0: 1 of its rows is an empty filler" in notes
    assert "last batch of epoch 0: lane 3 has empty fillers alone" in notes
    assert (summary["filler_rows"], summary["dropped_rows"], summary["epochs"]) == (1, 0, 1.0)
    assert row["padding"] == 1 - row["consumed_tokens"] / (4 * 96)
    want = reference(
        resolve({**config, "parallel": {}, "cluster": {"world_size": 1}}), tmp_path / "run/model"
    )
    assert row["loss"] == pytest.approx(want.rows[0]["loss"], rel=1e-6)
    assert row["grad_norm"] == pytest.approx(want.rows[0]["grad_norm"], rel=1e-5)
    assert row["valid_tokens"] == want.rows[0]["valid_tokens"]


def test_lanes_with_one_and_three_rows_both_run_three_microbatches(ranks: Any, tmp_path: Path) -> None:
    """Two lanes that share weights; dealt by work, lane 0 has the one long chat, lane 1 the three others."""
    config = three(tmp_path, data={"balance": "work"}, train={"global_batch_size": 6})
    with (tmp_path / "chats.jsonl").open("a") as file:
        turns = [("user", "frost"), ("assistant", "sand and tide and hill and lark and fern")]
        file.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}) + "\n")
    config |= {"parallel": {W: 2}, "cluster": {"world_size": 2, "device": "cpu"}}
    data = prepare(resolve(config))
    loaders = [
        LaneLoader(data.stream, data.dataset, lane=lane, num_lanes=2, micro_batch_size=1, balance="work")
        for lane in range(2)
    ]
    assert [[len(rows[0].records) for rows in loader.rows(0)] for loader in loaders] == [[1, 0, 0], [1, 1, 1]]
    results = ranks(2, whole_run, config, timeout_s=60)
    want = reference(
        resolve({**config, "parallel": {}, "cluster": {"world_size": 1}}), tmp_path / "run/model"
    )
    for (row,), _, _ in results:
        assert row["consumed_samples"] == 4
        assert row["loss"] == pytest.approx(want.rows[0]["loss"], rel=1e-6)
        assert row["grad_norm"] == pytest.approx(want.rows[0]["grad_norm"], rel=1e-5)


def test_too_few_samples_without_fillers(ranks: Any, tmp_path: Path) -> None:
    config = three(tmp_path, data={"last_batch": "drop"})
    with pytest.raises(Exception, match="0 steps: epoch 0 has 3 rows"):
        ranks(4, run_on_rank, config)


def test_dropped_rows_are_counted(ranks: Any, tmp_path: Path) -> None:
    config = three(tmp_path, data={"last_batch": "drop"}, train={"global_batch_size": 2, "epochs": 3})
    config |= {"parallel": {W: 2}, "cluster": {"world_size": 2, "device": "cpu"}}
    rows, notes, summary = ranks(2, whole_run, config)[0]
    assert [row["consumed_samples"] for row in rows] == [2, 4, 6]
    assert [row["epoch"] for row in rows] == [1.0, 2.0, 3.0]
    assert "last batch of epoch 0: dropped, with 1 row" in notes
    assert (summary["filler_rows"], summary["dropped_rows"]) == (0, 3)


def broken_record(rank: int, world_size: int, config: dict[str, Any]) -> tuple[str, list[str]]:
    """A run in which the record of line 2 cannot be read; what a rank says, and its threads afterwards."""

    def ids(self: TokenizedDataset, position: int) -> Any:
        if self.numbers[position] == 2:
            raise OSError("the disk is gone")
        return read(self, position)

    read, message = TokenizedDataset.ids, ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenizedDataset, "ids", ids)
        try:
            whole_run(rank, world_size, config)
        except RunError as error:
            message = str(error)
    return message, [t.name for t in threading.enumerate() if t.name.startswith("rows of lane")]


def test_a_record_that_cannot_be_read_ends_the_run_by_name(ranks: Any, tmp_path: Path) -> None:
    config = three(tmp_path)
    config |= {"parallel": {}, "cluster": {"world_size": 1, "device": "cpu"}}
    ((message, threads),) = ranks(1, broken_record, config)
    assert message == f"lane 0: {tmp_path}/chats.jsonl, line 2 cannot be read: OSError: the disk is gone"
    assert threads == []


def test_balanced_lanes_train_the_same(ranks: Any, tmp_path: Path) -> None:
    """The loss of a step is a sum over the same rows, whoever has them."""
    write_chats(tmp_path / "chats.jsonl")
    found = {}
    for world, parallel, balance in ((4, {W: 4}, "work"), (4, {}, "work"), (4, {W: 4}, "none")):
        config = settings(
            tmp_path, parallel=parallel, world_size=world, data={"balance": balance, "packing": "none"}
        )
        config["train"] |= {"max_steps": 4, "micro_batch_size": 1}
        found[balance, bool(parallel)] = ranks(world, whole_run, config, timeout_s=90)[0][0]
    config = settings(tmp_path, parallel={}, world_size=1, data={"packing": "none", "balance": "work"})
    config["train"] |= {"max_steps": 4}
    alone = ranks(1, whole_run, config)[0][0]
    for rows in found.values():
        for row, want in zip(rows, alone, strict=True):
            assert row["loss"] == pytest.approx(want["loss"], rel=1e-6)
            assert row["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-5)
            assert row["consumed_tokens"] == want["consumed_tokens"]
    even, plain = ([row["lane_imbalance"] for row in found[key, True]] for key in ("work", "none"))
    assert all(a < b for a, b in zip(even, plain, strict=True))
    assert {row["lane_imbalance"] for row in alone} == {1.0}
