"""Runs on an Energon data set, in several layouts, against one process that knows nothing of Energon."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.prepare import EnergonRunData, prepare_energon
from rankloom.data.energon.state import EnergonState
from rankloom.data.rows import Counts
from rankloom.errors import RunError, UserError
from rankloom.records.energon import EnergonData
from rankloom.train.assemble import load_data
from rankloom.train.energon import EnergonBatches
from rankloom.train.loop import run_connected
from tests.data.energon.datasets import prepare
from tests.data.energon.runs import numbers
from tests.parity.compare import differences
from tests.parity.layouts import layout
from tests.parity.reference import Step, Trajectory, reference
from tests.runtime.runs import Recorder, run, settings, write_chats

STEPS, ROWS, LANES = 10, 8, 16
W, CP = "tensor_parallel_num_weight_shards", "context_parallel_size"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("training")
    write_chats(made / "chats.jsonl")
    prepare(made / "chats.jsonl")
    return made


def config(folder: Path, *, parallel: Mapping[str, Any], world: int, **sections: Any) -> dict[str, Any]:
    data = {
        "train": None,
        "source": "energon",
        "path": str(folder / "chats.jsonl"),
        "num_virtual_lanes": LANES,
        "packing_window": 4,
    } | sections.pop("data", {})
    return settings(folder, parallel=parallel, world_size=world, data=data, **sections)


def in_one_process(data: EnergonRunData, *, num_steps: int, rows: int = ROWS) -> list[Step]:
    """The samples of each row of each step, as one lane alone has them."""
    lanes = VirtualLanes(
        data.source,
        num_virtual_lanes=LANES,
        lane=0,
        num_lanes=1,
        settings=data.settings,
        seed=data.seed,
        encoder=data.encoder,
    )
    return [tuple(numbers(row) for row in lanes.rows(step * rows, rows)) for step in range(num_steps)]


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trajectory:
    """A plain training on these rows: samples count from 0, lines of the file from 1."""
    data = prepare_energon(resolve(config(folder, parallel={}, world=1)))
    steps = [
        tuple(tuple(sample + 1 for sample in row) for row in step)
        for step in in_one_process(data, num_steps=STEPS)
    ]
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    data.tokenizer.save_pretrained(str(tokenizer))
    return reference(resolve(settings(folder, parallel={}, world_size=1)), tokenizer, steps=steps)


@pytest.mark.parametrize(
    ("where", "num_workers"),
    [
        (layout("4 W4"), 0),
        (layout("4 W2 CP2", rows=2), 0),
        (layout("4 TP2 W4", rows=4), 0),
        pytest.param(layout("4 W2 CP2", rows=2), 1, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_equal_to_one_process(
    ranks: Any, folder: Path, expected: Trajectory, tmp_path: Path, where: Any, num_workers: int
) -> None:
    made = config(
        folder,
        parallel=where.parallel,
        world=where.world,
        data={"num_workers": num_workers},
        train={"micro_batch_size": where.micro_batch_size},
        checkpoint={"dir": str(tmp_path)},
    )
    rows, *_ = ranks(where.world, run, made, timeout_s=180)
    differences(Trajectory(rows, load_file(tmp_path / "model" / "model.safetensors")), expected).refuse()


def told(rank: int, world_size: int, made: dict[str, Any]) -> tuple[list[Any], list[str], Mapping[str, Any]]:
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder = Recorder()
    summary = run_connected(resolved, comm, reporter=recorder)
    comm.close()
    return recorder.rows, recorder.notes, dict(summary)


def test_what_a_run_says(ranks: Any, folder: Path, tmp_path: Path) -> None:
    """An epoch and more; chats that are too long are left out, and counted by all ranks alike."""
    made = config(
        folder,
        parallel={},
        world=2,
        data={"max_seq_length": 40, "packing": False, "validation": str(folder / "chats.jsonl")},
        train={"max_steps": 20},
        checkpoint={"dir": str(tmp_path)},
    )
    (rows, notes, summary), (other, _, _) = ranks(2, told, made, timeout_s=180)
    assert notes[:3] == [
        f"data: {folder}/chats.jsonl, 120 samples, through Energon",
        "rows: of 40 tokens, one sample each (packing is off); 16 virtual lanes, 8 for each of 2 lanes",
        "tokenizer: the trained tokenizer, 269 tokens",
    ]
    assert [(r["loss"], r["epoch"], r["consumed_tokens"]) for r in rows] == [
        (r["loss"], r["epoch"], r["consumed_tokens"]) for r in other
    ]
    assert [r["consumed_samples"] for r in rows] == [8 * step for step in range(1, 21)]
    assert [r["consumed_chats"] for r in rows] == [8 * step for step in range(1, 21)]
    assert rows[-1]["epoch"] > 1.2
    assert all(1.0 <= r["lane_token_imbalance"] < 2.0 for r in rows)
    assert rows[-1]["eval_tokens"] > 0
    assert set(summary["records_left_out"]) == {"longer than data.max_seq_length"}
    assert summary["left out"].endswith("longer than data.max_seq_length)")


def stepped(
    rank: int, world_size: int, made: dict[str, Any], content: Mapping[str, Any] | None, num_steps: int
) -> tuple[list[Any], Mapping[int, Any], list[Any], Mapping[str, object]]:
    """Some steps, read ahead, from a state; the rows as all owners tell them, this rank's state after these
    steps, and the counts."""
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    data = load_data(resolved)
    assert isinstance(data, EnergonRunData)
    batches = EnergonBatches(resolved, comm, data, is_owner=comm["lane"].index == 0)
    first = 0
    if content is not None:
        shared = {key: value for key, value in content.items() if key != "virtual_lanes"}
        batches.restore(shared, [content["virtual_lanes"]], allowed=())
        first = content["step"]
    batches.verify(first)
    batches.read_ahead(first=first, last=first + num_steps + 1)  # two more than are trained on
    rows, counts = [], []
    for step0 in range(first, first + num_steps):
        counts.append(batches.facts(step0).counts)
        batches.read(step0)
        rows.append(batches.report(step0))
    told = batches.lane_state(first + num_steps) or {}
    found = {int(number): state for number, state in told.items()}
    batches.close()
    comm.close()
    return rows, found, counts, data.order


def test_stops_and_goes_on_under_other_lanes(ranks: Any, folder: Path) -> None:
    """4 lanes, then 2 lanes of 2 context ranks each, then 8, with another global batch; the samples are those
    of a run that never stopped."""
    content, place, step = None, 0, 0
    samples: list[list[str]] = []
    for world, parallel, size, num_steps in (
        (4, {}, 8, 5),
        (4, {"context_parallel_size": 2}, 8, 4),
        (8, {}, 16, 3),
    ):
        made = config(folder, parallel=parallel, world=world, train={"global_batch_size": size})
        results = ranks(world, stepped, made, content, num_steps, timeout_s=180)
        rows, _, counts, order = results[0]
        assert all(result[0] == rows and result[2] == counts for result in results)
        for lanes in rows:
            told = sorted((row for lane in lanes for row in lane), key=lambda row: row["row"])
            assert [row["row"] for row in told] == list(range(place, place + size))
            assert all(row["row"] % len(lanes) == k for k, lane in enumerate(lanes) for row in lane)
            samples += [row["records"] for row in told]
            place += size
        step += num_steps
        state = EnergonState.of(
            [result[1] for result in results], step=step, consumed=Counts(place, 0, 0, 0), settings=order
        )
        content = state.to_json()
    data = prepare_energon(resolve(config(folder, parallel={}, world=1)))
    whole = in_one_process(data, num_steps=place // 8)
    assert samples == [
        [f"chats.jsonl, sample {number}" for number in row] for batch in whole for row in batch
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"num_virtual_lanes": 8}, "data.num_virtual_lanes was 16, now it is 8"),
        ({"packing": False}, "data.packing was greedy, now it is none"),
        ({"packing_window": 5}, "data.packing_window was 4, now it is 5"),
        ({"seed": 1}, "data.seed was 0, now it is 1"),
        ({"max_seq_length": 64}, "data.max_seq_length was 96, now it is 64"),
        ({"overlong": "truncate"}, "data.overlong was drop, now it is truncate"),
        ({"train_on": "last_turn"}, "data.train_on was all_turns, now it is last_turn"),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(folder: Path, data: dict[str, Any], said: str) -> None:
    """Energon itself goes on under most of them, with other samples."""
    saved = prepare_energon(resolve(config(folder, parallel={}, world=1))).order
    now = prepare_energon(resolve(config(folder, parallel={}, world=2, data=data))).order
    state = EnergonState(0, Counts(0, 0, 0, 0), saved, {})
    with pytest.raises(UserError, match=re.escape(said)):
        state.check(now)


def test_a_run_goes_on_with_a_data_set_that_was_moved_and_not_with_another(
    folder: Path, tmp_path: Path
) -> None:
    def order(place: Path) -> Mapping[str, object]:
        return prepare_energon(
            resolve(config(place, parallel={}, world=1, data={"cache_dir": str(folder / "cache")}))
        ).order

    state = EnergonState(0, Counts(0, 0, 0, 0), order(folder), {})
    for name in ("chats.jsonl", "chats.jsonl.idx"):
        shutil.copy(folder / name, tmp_path / name)
    state.check(order(tmp_path))
    write_chats(tmp_path / "chats.jsonl", count=40)
    prepare(tmp_path / "chats.jsonl")
    with pytest.raises(
        UserError, match=r"the data set was 120 samples, fingerprint \w+, now it is 40 samples"
    ):
        state.check(order(tmp_path))


def wrong_lane(rank: int, world_size: int, made: dict[str, Any]) -> str:
    """The start-up check where rank 1 reads for lane 0."""
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    data = load_data(resolved)
    assert isinstance(data, EnergonRunData)
    batches = EnergonBatches(resolved, comm, data, is_owner=True)
    if rank == 1:
        from rankloom.data.energon.loading import EnergonLoader

        batches.loader = EnergonLoader(data, lane=0, num_lanes=2, micro_batch_size=1)
    message = ""
    try:
        batches.verify(0)
    except RunError as error:
        message = str(error)
    comm.close()
    return message


def test_lanes_with_the_same_samples_are_found_at_the_start(ranks: Any, folder: Path) -> None:
    said, other = ranks(2, wrong_lane, config(folder, parallel={}, world=2), timeout_s=120)
    assert said == other
    assert said.startswith("ranks 0 and 1 read for different lanes but both have sample ")
    assert said.endswith("chats.jsonl in epoch 0")


@pytest.mark.long
def test_the_command_line_on_tar_files(tmp_path: Path, tars: EnergonData) -> None:
    """4 local ranks in two layouts: the same losses, to the last step of more than an epoch."""
    rankloom = Path(sys.executable).parent / "rankloom"
    losses = []
    for number, parallel in enumerate(({W: 4}, {W: 2, CP: 2})):
        made = config(tmp_path, parallel=parallel, world=4, train={"max_steps": 12})
        made["data"] |= {"path": tars.path, "packing_window": 4, "max_seq_length": 64}
        made["checkpoint"] = {"dir": str(tmp_path / f"run-{number}")}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(made))
        done = subprocess.run(
            [rankloom, "train", tmp_path / "run.yaml"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"data: {tars.name}, 100 samples, through Energon" in done.stderr
        metrics = (tmp_path / f"run-{number}" / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in metrics]
        assert len(rows) == 12
        assert rows[-1]["epoch"] > 1
        losses.append([row["loss"] for row in rows])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
