"""The controller without Ray: each pool rank runs one of its own, and all of them do the same.

Of a call a rank runs its own part when it is sent, and results are exchanged when they are gathered.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rankloom.comm import Communicator
from rankloom.config import ResolvedConfig, resolve
from rankloom.driver.controller import SFTController
from rankloom.driver.worker import TrainWorker
from rankloom.train.stopping import Deadline
from tests.runtime.runs import Recorder


class FileStore:
    """What is put is a file; it comes back read-only, as from Ray's store."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._numbers = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, value: Any) -> str:
        file = self._folder / f"{self._rank}-{next(self._numbers)}.npy"
        np.save(file, value)
        return str(file)

    def get(self, reference: str) -> Any:
        return np.load(reference, mmap_mode="r")


class RankGroup:
    """The workers of all ranks, of which this process has one. ``calls``: those that reached it."""

    def __init__(self, rank: int, world_size: int, worker: TrainWorker) -> None:
        self._rank, self._worker = rank, worker
        self.ranks = frozenset(range(world_size))
        self.calls: list[str] = []

    def share(self, value: Any) -> Any:
        return value

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if rank != self._rank:
            return None
        self.calls.append(method)
        return getattr(self._worker, method)(*args, **kwargs)

    def gather(self, handles: Mapping[int, Any], wanted: Sequence[int], **options: Any) -> list[Any]:
        told: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(told, handles.get(self._rank))
        return [told[rank] for rank in wanted]


def controller(
    rank: int,
    world_size: int,
    config: Mapping[str, Any],
    reporter: Any,
    *,
    deadline: Deadline | None = None,
    **options: Any,
) -> tuple[SFTController, RankGroup, ResolvedConfig]:
    resolved = resolve(config)

    def connect() -> Communicator:
        comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
        comm.verify()
        return comm

    store = FileStore(Path(resolved.checkpoint.dir).parent / "store", rank)
    group = RankGroup(
        rank, world_size, TrainWorker(resolved, rank, connect=connect, store=store, deadline=deadline)
    )
    return SFTController(resolved, group, reporter=reporter, **options), group, resolved


def run_controlled(
    rank: int,
    world_size: int,
    config: Mapping[str, Any],
    stop_after: int = 0,
    deadline: Deadline | None = None,
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """A whole run; its rows and its summary. ``stop_after``: the step in which it is asked to end."""
    recorder = Recorder()

    def wish() -> str:
        return "SIGTERM" if stop_after and len(recorder.rows) == stop_after - 1 else ""

    controlled, _, _ = controller(rank, world_size, config, recorder, wish=wish, deadline=deadline)
    summary = controlled.run()
    return recorder.rows, dict(summary)


def all_calls(
    rank: int,
    world_size: int,
    config: Mapping[str, Any],
    sequences: Sequence[Sequence[int]],
    folder: str,
) -> dict[str, Any]:
    """Every call once, in an order in which a run could make them."""
    recorder = Recorder()
    controlled, group, resolved = controller(rank, world_size, config, recorder)
    call = controlled.call
    num_lanes = resolved.layout.batch_parallel_size
    pieces = [list(sequences[lane::num_lanes]) for lane in range(num_lanes)]
    counted = [
        [(ids, [True] * len(ids)) for ids in piece[:1]] + [(ids, None) for ids in piece[1:]]
        for piece in pieces
    ]
    views = call("introduce")
    started = call("start")
    call("train", 1, pieces=call("load_batch", 1))
    again = call("load_batch", 2) == call("load_batch", 2)  # idempotent
    found = {
        "logprobs": in_order(call("get_logprobs", pieces=pieces), len(sequences)),
        "scores": in_order(call("score", pieces=counted), len(sequences)),
        "evaluation": call("evaluate")[0],
    }
    [saved] = call("save")
    call("export", folder)
    first = call("train", 2, pieces=call("load_batch", 2))
    loaded = call("load", saved)
    second = call("train", 2, pieces=call("load_batch", 2))
    call("finish")
    return {
        **found,
        "views": views,
        "started": (started[0].first_step, started[0].max_steps),
        "loaded": (loaded[0].first_step, loaded[0].max_steps),
        "again": again,
        "saved": saved,
        "steps": [[lane.step for lane in lanes] for lanes in (first, second)],
        "losses": [
            event[1][0]["loss"]
            for lanes in (first, second)
            for event in lanes[0].events
            if event[0] == "step"
        ],
        "calls": group.calls,
    }


def in_order(by_lane: Sequence[Sequence[Any]], number: int) -> list[Any]:
    return [by_lane[place % len(by_lane)][place // len(by_lane)] for place in range(number)]
