"""A rank that is killed before any one of its changes to the disk: the same command always goes on to the end
of the undisturbed run."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rankloom.checkpoint import complete_checkpoints, list_checkpoints
from tests.pool import RanksFailed
from tests.resume.runs import (
    TIMES,
    assert_equal_bits,
    branch,
    chats,
    config,
    metrics,
    started,
    tensors,
    train,
    without,
)

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")


def train_counted(
    rank: int, world_size: int, made: Mapping[str, Any], victim: int, kill_at: int | None
) -> list[str]:
    """A run; ``victim`` counts its changes to the run's folder and is killed just before number ``kill_at``.
    Returns what they were."""
    seen: list[str] = []
    watching = rank == victim
    directory = made["checkpoint"]["dir"]

    def count(event: str, args: tuple[Any, ...]) -> None:
        if not watching or not (event in CHANGES or (event == "open" and _writes(args))):
            return
        path = str(args[0])
        if not path.startswith(directory) and not threading.current_thread().name.startswith("checkpoint-"):
            return
        if len(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(f"{event} {Path(path).name}")

    sys.addaudithook(count)
    train(rank, world_size, made)
    watching = False
    return seen


def _writes(args: tuple[Any, ...]) -> bool:
    flags = args[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


class Killed:
    """The last two of five steps of a run, saved after each, one checkpoint kept; and what they change."""

    def __init__(self, ranks: Any, folder: Path, victim: int) -> None:
        self._ranks, self._folder, self._victim = ranks, chats(folder), victim
        self.whole = folder / "whole"
        started(ranks, self._config(self.whole, keep=None))
        self.changes: list[str] = ranks(2, train_counted, self._begun(folder / "counted"), victim, None)[
            victim
        ]

    def _config(self, directory: Path, **checkpoint: Any) -> dict[str, Any]:
        made = {"train": {"max_steps": 5}, "checkpoint": {"save_every": 1, "keep": 1, **checkpoint}}
        return config(self._folder, "2 TP2", directory, **made)

    def _begun(self, directory: Path) -> dict[str, Any]:
        return self._config(branch(self.whole, directory, step=3))

    def survives(self, kill_at: int) -> None:
        what = f"{kill_at}: {self.changes[kill_at]}"
        directory = Path(tempfile.mkdtemp(dir=self._folder)) / "run"
        made = self._begun(directory)
        with pytest.raises(RanksFailed, match="was ended by SIGKILL"):
            self._ranks(2, train_counted, made, self._victim, kill_at, timeout_s=60)
        assert complete_checkpoints(directory), what
        found = list_checkpoints(directory)
        assert all(one.complete or one.leftover for one in found), (what, found)
        was_saved = (directory / "step-00000005").exists()
        after = started(self._ranks, made)
        assert not any(note.startswith("warning") for note in after.notes), what
        assert without(metrics(directory), TIMES) == without(metrics(self.whole), TIMES), what
        assert_equal_bits(tensors(directory / "step-00000005"), tensors(self.whole / "step-00000005"))
        models = [load_file(run / "model/model.safetensors") for run in (directory, self.whole)]
        assert_equal_bits(*models)
        names = {path.name for path in directory.iterdir()}
        older = {"step-00000004", "step-00000004.removed"}  # after the last save, nothing takes them away
        left = names - {"latest", "metrics.jsonl", "model", "step-00000005"}
        assert left <= (older if was_saved else set()), (what, left)


@pytest.fixture(scope="module")
def first_rank(rank_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(rank_pool.run, tmp_path_factory.mktemp("killed"), 0)


def test_what_a_save_changes_and_in_which_order(first_rank: Killed) -> None:
    """The pointer moves, and the older checkpoint goes, only after the folder has its name."""
    changes = first_rank.changes
    renamed = changes.index("os.rename step-00000004.partial")
    assert changes[renamed - 1] == "os.rename checkpoint.json.tmp"
    assert changes[renamed + 1 : renamed + 3] == ["open latest.tmp", "os.rename latest.tmp"]
    assert changes[renamed + 3] == "os.rename step-00000003"


@pytest.mark.parametrize("change", ["os.rename step-00000004.partial", "os.rename step-00000003"])
def test_the_first_rank_is_killed_at_the_end_of_a_save(first_rank: Killed, change: str) -> None:
    first_rank.survives(first_rank.changes.index(change))


@pytest.mark.long
def test_the_first_rank_is_killed_anywhere(first_rank: Killed) -> None:
    for kill_at in range(len(first_rank.changes)):
        first_rank.survives(kill_at)


@pytest.mark.long
def test_the_other_rank_is_killed_anywhere(ranks: Any, tmp_path: Path) -> None:
    other = Killed(ranks, tmp_path, 1)
    for kill_at in range(len(other.changes)):
        other.survives(kill_at)
