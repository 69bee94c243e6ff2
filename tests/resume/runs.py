"""Whole runs that are cut in two: what each part trained on, told and left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rankloom.checkpoint import read_manifest
from rankloom.comm import Communicator
from rankloom.config import resolve
from rankloom.errors import UserError
from rankloom.train.loop import run_connected
from rankloom.train.stopping import Stopping
from rankloom.train.worker import StepOutcome, Worker
from tests.pool import RanksFailed
from tests.runtime.runs import Recorder, settings, write_chats

TP, W, Q, CP, ORDER = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "rank_order",
)
# Ranks and their layout: 1 to 8 ranks, 1 to 8 lanes; 269 rows of the vocabulary divide by none of them.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (1, {}),
    "2 TP2": (2, {TP: 2}),
    "3 W3 Q3": (3, {W: 3, Q: 3}),
    "4 W4": (4, {W: 4}),
    "4 TP2 W4": (4, {TP: 2, W: 4}),
    "4 W2 CP2": (4, {W: 2, CP: 2}),
    "6 W6 Q3": (6, {W: 6, Q: 3}),
    "8 W4": (8, {W: 4}),
    "8 TP2 W4 Q4 CP2 other-order": (8, {TP: 2, W: 4, Q: 4, CP: 2, ORDER: "tp-cp-gtp-dp-pp"}),
}
# Of a metrics row: what differs from one run to the next, and what one layout sends and waits for.
TIMES = ("step_time_s", "tokens_per_second", "loader_wait_s")
OF_THE_LAYOUT = (*TIMES, "comm_bytes", "lane_imbalance", "lane_token_imbalance")
OF_SUMS = ("loss", "grad_norm", "eval_loss")  # taken in another order in another layout


@dataclass(frozen=True)
class Outcome:
    """What one rank saw. ``samples``: of each step the rows of all lanes, by number."""

    rows: list[Mapping[str, Any]]
    notes: list[str]
    samples: dict[int, list[dict[str, Any]]]
    summary: Mapping[str, Any]


def config(folder: Path, where: str, directory: Path, **sections: Any) -> dict[str, Any]:
    """Six steps on ``folder``/chats.jsonl in a layout of `LAYOUTS`, saved after every third."""
    world, parallel = LAYOUTS[where]
    sections["train"] = {"max_steps": 6, **sections.get("train", {})}
    saves = {"dir": str(directory), "save_every": 3, "keep": None}
    sections["checkpoint"] = saves | sections.get("checkpoint", {})
    return settings(folder, parallel=parallel, world_size=world, **sections)


def chats(folder: Path, *, count: int = 120) -> Path:
    """The folder, with its data."""
    folder.mkdir(parents=True, exist_ok=True)
    write_chats(folder / "chats.jsonl", count=count)
    return folder


def train(rank: int, world_size: int, made: Mapping[str, Any], stop_after: int | None = None) -> Outcome:
    """A whole run on a rank of the pool; ``stop_after``: somebody asks the last rank to end after that many
    steps of this run."""
    resolved = resolve(made)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder, samples, step = Recorder(), {}, Worker.step

    def recorded(self: Worker, step0: int, *, lr: float, wish: Callable[[], bool]) -> StepOutcome:
        outcome = step(self, step0, lr=lr, wish=wish)
        rows = [row for lane in self.batches.report(step0) for row in lane]
        samples[step0 + 1] = sorted(rows, key=lambda row: row["row"])
        return outcome

    def asked() -> str:
        asks = stop_after is not None and rank == world_size - 1 and len(samples) >= stop_after - 1
        return "a test" if asks else ""

    Worker.step = recorded  # type: ignore[method-assign]
    try:
        summary = run_connected(resolved, comm, reporter=recorder, stopping=Stopping(asked=asked))
    finally:
        Worker.step = step  # type: ignore[method-assign]
    comm.close()
    return Outcome(recorder.rows, recorder.notes, samples, dict(summary))


def started(ranks: Any, made: Mapping[str, Any], stop_after: int | None = None) -> Outcome:
    """`train` on all ranks of a config: what the first one saw, the same losses and samples on all."""
    first, *others = ranks(made["cluster"]["world_size"], train, made, stop_after, timeout_s=240)
    for other in others:
        assert [r["loss"] for r in other.rows] == [r["loss"] for r in first.rows]
        assert other.samples == first.samples
    outcome: Outcome = first
    return outcome


def refused(ranks: Any, given: dict[str, Any]) -> str:
    """What a run is refused with, by all its ranks alike."""
    with pytest.raises(RanksFailed) as caught:
        ranks(given["cluster"]["world_size"], train, given, timeout_s=120)
    told = {text.splitlines()[0] for text in caught.value.failures.values()}
    assert len(told) == 1, told
    (message,) = told
    assert message.startswith(f"raised {UserError.__name__}: "), message
    return message.removeprefix(f"raised {UserError.__name__}: ")


def branch(source: Path, target: Path, *, step: int) -> Path:
    """A run's folder as it was when the run was killed some time after it had saved ``step``: with the
    metrics of later steps."""
    target.mkdir(parents=True)
    name = f"step-{step:08d}"
    shutil.copytree(source / name, target / name)
    (target / "latest").write_text(name + "\n")
    shutil.copy(source / "metrics.jsonl", target / "metrics.jsonl")
    return target


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics file."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def without(rows: Any, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in keys} for row in rows]


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, put together from its files with nothing of the package."""
    manifest = json.loads((folder / "checkpoint.json").read_text())
    files = {name: load_file(folder / name) for name in manifest["files"] if name.endswith(".safetensors")}
    found = {}
    for name, told in manifest["tensors"].items():
        whole = torch.full(told["shape"], float("nan"), dtype=getattr(torch, told["dtype"]))
        for box in told["boxes"]:
            at = tuple(slice(low, high) for low, high in zip(box["starts"], box["stops"], strict=True))
            whole[at] = files[box["file"]][box["key"]]
        found[name] = whole
    return found


def state_of(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of its run, without what is of one layout."""
    manifest = read_manifest(folder)
    return {"step": manifest.step, "num_updates": manifest.num_updates, **manifest.state}


def assert_equal_bits(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name


def assert_close(got: Mapping[str, Tensor], want: Mapping[str, Tensor], *, most: float) -> None:
    """Every tensor within ``most`` of its norm."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        distance = float((got[name].double() - tensor.double()).norm() / tensor.double().norm())
        assert distance <= most, (name, distance)
