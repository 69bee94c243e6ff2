"""Samples, tokens, epochs and learning rates: the same numbers in any layout, with any microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.data.prepare import prepare
from rankloom.errors import UserError
from rankloom.plan import ModelPlan, ModelSpec, bytes_by_group, step_collectives
from rankloom.train.assemble import learning_rate, step_shape
from rankloom.train.loop import run_connected
from tests.runtime.runs import TINY, Recorder, settings, write_chats

W, CP = "tensor_parallel_num_weight_shards", "context_parallel_size"
LAYOUTS: list[tuple[int, dict[str, int], int]] = [
    (1, {}, 1),
    (4, {W: 4}, 1),
    (4, {W: 4, CP: 1}, 2),
    (4, {CP: 2}, 1),
]


def run(rank: int, world_size: int, config: Mapping[str, Any]) -> tuple[list[Any], Any]:
    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder = Recorder()
    summary = run_connected(resolved, comm, reporter=recorder)
    comm.close()
    return recorder.rows, summary


def config(
    folder: Path, world: int, parallel: Mapping[str, int], *, micro: int = 1, **sections: Any
) -> dict[str, Any]:
    write_chats(folder / "chats.jsonl")
    given = settings(folder, parallel=parallel, world_size=world, **sections)
    given["train"] |= {"micro_batch_size": micro}
    return given


def ten_batches(folder: Path, world: int, parallel: Mapping[str, int], micro: int) -> dict[str, Any]:
    """A linear warm-up over ten batches of 4 to 1.0."""
    return config(
        folder,
        world,
        parallel,
        micro=micro,
        train={"global_batch_size": 4, "max_steps": 5},
        schedule={"decay": "constant", "warmup_samples": 40},
        optimizer={"lr": 1.0},
    )


@pytest.mark.parametrize(("world", "parallel"), [(1, {}), (4, {})], ids=["1_lane_x_4", "4_lanes_x_1"])
def test_the_rate_at_step_5_of_10_is_a_half(
    ranks: Any, tmp_path: Path, world: int, parallel: dict[str, int]
) -> None:
    rows, _ = ranks(world, run, ten_batches(tmp_path, world, parallel, 1))[0]
    assert [row["lr"] for row in rows] == [0.1, 0.2, 0.3, 0.4, 0.5]


KEYS = (
    "lr",
    "consumed_samples",
    "consumed_chats",
    "consumed_tokens",
    "valid_tokens",
    "epoch",
    "padding",
    "global_batch_size",
)
SECTIONS: dict[str, dict[str, Any]] = {
    "tokens": {
        "schedule": {"decay": "wsd", "warmup_samples": 0, "warmup_tokens": 1200, "wsd_decay_tokens": 900}
    },
    "tokens_to_an_end": {"schedule": {"decay": "linear", "warmup_samples": 0, "decay_tokens": 2000}},
    "ramp": {"train": {"max_steps": 5, "global_batch_size": 16, "rampup_batch_size": [4, 4, 30]}},
    "wsd": {"schedule": {"decay": "wsd", "warmup_samples": 16, "wsd_decay_samples": 24}},
    "two_epochs": {"train": {"max_steps": None, "epochs": 2}, "data": {"packing": "first_fit_decreasing"}},
}


IN_LONG = ("tokens_to_an_end", "two_epochs", "tokens", "wsd")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in IN_LONG)) for name in SECTIONS]
)
def test_counts_and_rates_do_not_depend_on_the_layout(ranks: Any, tmp_path: Path, name: str) -> None:
    found, losses = {}, {}
    for world, parallel, micro in LAYOUTS:
        given = config(tmp_path, world, parallel, micro=micro if name != "ramp" else 1, **SECTIONS[name])
        rows, summary = ranks(world, run, given, timeout_s=90)[0]
        key = (world, *parallel, micro)
        found[key] = [[row[k] for k in KEYS] for row in rows]
        losses[key] = [row["loss"] for row in rows]
        assert summary["consumed_tokens"] == rows[-1]["consumed_tokens"]
        assert summary["valid_tokens"] == sum(row["valid_tokens"] for row in rows)
        assert summary["epochs"] == rows[-1]["epoch"]
    first, *others = found.values()
    assert all(other == first for other in others)
    for other in losses.values():
        assert other == pytest.approx(next(iter(losses.values())), rel=1e-5)


def test_a_schedule_over_tokens_counts_real_ones(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 1, {}, **SECTIONS["tokens"])
    rows, _ = ranks(1, run, given)[0]
    whole = rows[-1]["consumed_tokens"]  # the schedule ends with the run
    for row in rows:
        n = row["consumed_tokens"]
        part = max(0, n - (whole - 900)) / 900
        want = 3e-3 * n / 1200 if n < 1200 else 3e-3 * (2 * 0.5**part - 1)
        assert row["lr"] == pytest.approx(want, rel=1e-12, abs=1e-18)
    assert rows[-1]["lr"] == 0.0
    assert rows[0]["lr"] < 3e-3


def test_a_schedule_over_tokens_that_the_run_is_too_short_for(tmp_path: Path) -> None:
    given = config(
        tmp_path,
        1,
        {},
        schedule={"warmup_samples": 0, "warmup_tokens": 10**6},
        train={"max_steps": 2},
    )
    resolved = resolve(given, origin="run.yaml")
    stream = prepare(resolved).stream
    tokens = stream.counts(0).tokens + stream.counts(1).tokens
    with pytest.raises(UserError) as caught:
        learning_rate(resolved, max_steps=2, tokens=lambda: stream.tokens_through(2))
    assert str(caught.value) == (
        f"schedule.warmup_tokens 1000000 is larger than the run's {tokens} tokens; set "
        "schedule.decay_tokens, or train longer (schedule section of run.yaml)"
    )


def test_ramped_steps_by_hand(ranks: Any, tmp_path: Path) -> None:
    """4 rows until 10 samples, 8 until 20, 12 until 30, then 16; the schedule ends with all of them."""
    given = config(tmp_path, 4, {W: 4}, train=SECTIONS["ramp"]["train"], schedule={"warmup_samples": 0})
    resolved = resolve(given)
    assert resolved.schedule.decay_samples == 4 * 3 + 8 + 12
    plan = ModelPlan.build(ModelSpec.from_config(TINY), resolved.layout)
    for rank, (rows, _) in enumerate(ranks(4, run, given, timeout_s=90)):
        assert [row["global_batch_size"] for row in rows] == [4, 4, 4, 8, 12]
        assert [row["consumed_samples"] for row in rows] == [4, 8, 12, 20, 32]
        assert rows[-1]["lr"] == 0.0
        for row in rows:
            shape = step_shape(resolved, num_microbatches=row["global_batch_size"] // 4)
            assert row["comm_bytes"] == bytes_by_group(step_collectives(plan, shape), plan, rank)


def test_epochs_padding_and_fillers(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 2, {}, train={"max_steps": None, "epochs": 2, "global_batch_size": 14})
    rows, summary = ranks(2, run, given)[0]
    stream = prepare(resolve(given)).stream
    per_epoch = stream.steps_per_epoch(0)
    num_rows = sum(stream.counts(s).rows for s in range(per_epoch))
    assert [row["epoch"] for row in rows[: per_epoch - 1]] == [
        14 * (s + 1) / num_rows for s in range(per_epoch - 1)
    ]
    assert rows[per_epoch - 1]["epoch"] == 1.0
    assert rows[-1]["epoch"] == summary["epochs"] == 2.0
    for step0, row in enumerate(rows):
        assert row["padding"] == 1 - stream.counts(step0).tokens / (14 * 96)
    slots = len(rows) * 14 * 96
    assert summary["padding"] == pytest.approx(1 - summary["consumed_tokens"] / slots, rel=1e-12)
    fillers = sum(row.is_filler for step0 in range(len(rows)) for row in stream.batch(step0))
    assert summary["filler_rows"] == fillers > 0
    assert summary["loader_wait_s"] == pytest.approx(sum(row["loader_wait_s"] for row in rows))


def test_records_left_out_are_in_the_summary(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 1, {}, data={"max_seq_length": 32}, train={"max_steps": 1})
    _, summary = ranks(1, run, given)[0]
    ((reason, number),) = summary["records_left_out"].items()
    assert reason == "longer than data.max_seq_length"
    assert summary["left out"] == f"{number} records ({reason})"


def test_one_lane_is_even_and_lanes_are_measured(ranks: Any, tmp_path: Path) -> None:
    from rankloom.data import LaneLoader

    given = config(tmp_path, 4, {}, train={"max_steps": 3})
    rows, _ = ranks(4, run, given)[0]
    data = prepare(resolve(given))
    loaders = [
        LaneLoader(data.stream, data.dataset, lane=k, num_lanes=4, micro_batch_size=1) for k in range(4)
    ]
    for step0, row in enumerate(rows):
        lengths = [
            [int(data.dataset.lengths[r]) for m in loader.rows(step0) for x in m for r in x.records]
            for loader in loaders
        ]
        work = [sum(n * n for n in lane) for lane in lengths]
        tokens = [sum(lane) for lane in lengths]
        assert row["lane_imbalance"] == pytest.approx(max(work) / (sum(work) / 4), rel=1e-12)
        assert row["lane_token_imbalance"] == pytest.approx(max(tokens) / (sum(tokens) / 4), rel=1e-12)
