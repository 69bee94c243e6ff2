"""Saves checkpoints, in the background by default, so that training only waits for a copy of its own bytes.

main thread of every rank     arrives; the first rank makes the folder; a snapshot
background thread of a rank   its file, synced; then rank-N.done.json
background of the first rank  waits for these, then checkpoint.json, the folder's name, ``latest``, and only
                              then removes older checkpoints
main thread of every rank     at the next save, or in `wait`: hears of the end, or which rank and file failed

The background makes no collective: it could meet those of training in another order on another rank. Ranks
see each other through the disk on which they share the checkpoint anyhow.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from rankloom import __version__
from rankloom.checkpoint.files import replace_text, write_file
from rankloom.checkpoint.folders import checkpoint_folder, partial_folder, prepare_partial, prune, publish
from rankloom.checkpoint.manifest import MANIFEST, FileFacts, LayoutFacts, Manifest, ModelFacts, StoredTensor
from rankloom.checkpoint.snapshot import (
    Snapshot,
    dtype_name,
    rank_file,
    stored_kinds,
    stored_tensors,
    take_snapshot,
)
from rankloom.checkpoint.together import together
from rankloom.errors import RunError, UserError
from rankloom.layout.words import stretches_text
from rankloom.models import ShardedModel
from rankloom.models.export import write_configs
from rankloom.optim import ShardedAdamW

__all__ = ["Checkpointer", "save"]

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.25


class _Stage(IntEnum):
    """Of the writing of one rank; the first rank is done when the whole checkpoint is."""

    WRITING = 0
    DONE = 1
    FAILED = 2


@dataclass
class _Flight:
    """One save under way on this rank."""

    step: int
    folder: Path
    snapshot: Snapshot | None
    manifest: Mapping[str, Any]  # what only the first rank uses
    rank_state: Any
    num_updates: int
    stage: _Stage = _Stage.WRITING
    failure: str = ""  # this rank's own; none where it gave up because another has failed
    told: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def partial(self) -> Path:
        return partial_folder(self.folder)


class Checkpointer:
    """Saves the checkpoints of one run in ``directory``. All ranks make theirs alike.

    Args:
        keep: that many of the latest checkpoints stay; None: all.
        keep_every: checkpoints of steps that it divides stay too.
        background: write while training goes on; else `save` returns when the checkpoint is complete.
        config: the resolved config of the run, for people and for comparison when resuming.
        tokenizer: written into every checkpoint, for exports.
        tell: told on every rank which ranks are waited for, every ``patience_s`` seconds.
    """

    def __init__(
        self,
        model: ShardedModel,
        optimizer: ShardedAdamW,
        directory: str | Path,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        background: bool = True,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = 600.0,
    ) -> None:
        self._tell, self._patience_s = tell, patience_s
        self._model, self._optimizer = model, optimizer
        self._comm = model.comm
        self._directory = Path(directory)
        self._directory_is_there = self._directory.is_dir()
        self._keep, self._keep_every = keep, keep_every
        self._background = background
        self._config = _plain(config)
        self._tokenizer = tokenizer
        self._side_files: dict[str, bytes] = {}
        self._flight: _Flight | None = None
        self._completed: Path | None = None  # seen by `wait`, for `poll` to tell

    @property
    def in_flight(self) -> int | None:
        """The step whose checkpoint is being written, until `save` or `wait` has seen its end."""
        return self._flight.step if self._flight is not None else None

    def save(self, step: int, *, state: Mapping[str, Any], rank_state: Any = None) -> Path:
        """Saves the model and optimizer as they are now; a collective of all ranks, between two steps.

        ``state``: JSON of the run, equal on all ranks; the first one's is kept. ``rank_state``: JSON of this
        rank alone. Returns the folder, which has that name once it is complete. Waits for the save before.
        Raises RunError, on every rank, with the rank and file that failed, also for the save before.
        """
        self._comm.activity.phase = f"step {step}: saving a checkpoint"
        self.wait()
        self._arrive(step)
        folder = checkpoint_folder(self._directory, step)
        with together(self._comm, "checkpoint: folder"):
            flight = self._prepare(step, folder, state, rank_state)
        flight.thread = threading.Thread(
            target=self._write, args=(flight,), name=f"checkpoint-{step}", daemon=True
        )
        flight.thread.start()
        self._flight = flight
        if not self._background:
            self.wait()
        return folder

    def poll(self) -> Path | None:
        """No collective, and no waiting: for every step. Returns the folder of a checkpoint that has become
        complete, once, on the first rank. Raises RunError on a rank whose own writing has failed."""
        if self._completed is not None:
            folder, self._completed = self._completed, None
            return folder
        flight = self._flight
        if flight is None or flight.told or flight.stage is _Stage.WRITING:
            return None
        if flight.stage is _Stage.FAILED:
            raise RunError(self._failed(flight, f"rank {self._comm.rank}: {flight.failure}"))
        flight.told = True
        return flight.folder if self._is_first else None

    def wait(self) -> None:
        """Returns when the save under way is complete; a collective of all ranks. Raises RunError, on every
        rank, when it has failed: the checkpoints before it are untouched.

        However long the writing takes, no rank waits for another in a single collective for long: a slow
        disk is no hanging rank."""
        flight = self._flight
        if flight is None:
            return
        pause, since, told = _FIRST_LOOK_S, time.monotonic(), 1
        while (stages := self._stages(flight)) and _Stage.FAILED not in stages and _Stage.WRITING in stages:
            if time.monotonic() - since >= told * self._patience_s:
                self._tell(self._late(flight, stages, told * self._patience_s))
                told += 1
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)
        if _Stage.FAILED in stages:
            flight.cancelled.set()
        if flight.thread is not None:
            flight.thread.join()
        self._flight = None
        try:
            with together(self._comm, "checkpoint: end"):
                if flight.failure:
                    raise RunError(flight.failure)
        except RunError as error:
            if self._is_first:
                shutil.rmtree(flight.partial, ignore_errors=True)
            raise RunError(self._failed(flight, str(error))) from error
        if self._is_first and not flight.told:
            self._completed = flight.folder

    def _stages(self, flight: _Flight) -> list[_Stage]:
        mine = torch.tensor([flight.stage], device=self._comm.device)
        told = self._comm["world"].stack(mine, "checkpoint: progress")
        return [_Stage(stage) for stage in told.flatten().tolist()]

    def _late(self, flight: _Flight, stages: Sequence[_Stage], waited_s: float) -> str:
        """The first rank writes until all others are done."""
        world = self._comm["world"].ranks
        writing = [rank for rank, stage in zip(world, stages, strict=True) if stage is _Stage.WRITING]
        late = [rank for rank in writing if rank != world[0]] or writing
        whose = f"rank{'s' * (len(late) > 1)} {stretches_text(late)}"
        return (
            f"waiting for {waited_s:g} s for the checkpoint of step {flight.step}: {whose} still "
            f"write{'s' * (len(late) == 1)} to {flight.partial}"
        )

    @property
    def _is_first(self) -> bool:
        return self._comm["world"].index == 0

    @staticmethod
    def _failed(flight: _Flight, why: str) -> str:
        return f"the checkpoint of step {flight.step} was not saved: {why}; those before it are untouched"

    # -- before training goes on --

    def _arrive(self, step: int) -> None:
        """A call on some of the ranks ends here: the watchdog names those that did not come."""
        mine = torch.tensor([step, zlib.crc32(str(self._directory).encode())], device=self._comm.device)
        told = self._comm["world"].stack(mine, "checkpoint: arrival").tolist()
        for rank, theirs in zip(self._comm["world"].ranks, told, strict=True):
            if theirs != told[0]:
                what = f"step {theirs[0]}" if theirs[0] != told[0][0] else "another folder"
                first = self._comm["world"].ranks[0]
                raise RunError(
                    f"rank {rank} saves a checkpoint of {what} where rank {first} saves step {told[0][0]} "
                    f"in {self._directory}"
                )

    def _prepare(self, step: int, folder: Path, state: Mapping[str, Any], rank_state: Any) -> _Flight:
        """The snapshot; on the first rank also an empty folder and what goes into the manifest."""
        content: Mapping[str, Any] = {}
        if self._is_first:
            content = {"state": _plain(state), "saved_at": time.time()}
            self._refuse_to_make_another()
            _writable(prepare_partial, folder)
            self._directory_is_there = True
            self._side_files = self._side_files or _side_files(self._model, self._tokenizer)
        snapshot = take_snapshot(self._model, self._optimizer, copy=self._background)
        return _Flight(step, folder, snapshot, content, _plain(rank_state), self._optimizer.num_updates)

    def _refuse_to_make_another(self) -> None:
        """A folder of its name would be on the disk below the one that was mounted there, or apart from the
        checkpoints before."""
        if self._directory_is_there and not self._directory.is_dir():
            raise RunError(
                f"checkpoint.dir: {self._directory} is gone since the run began; it was moved or removed, or "
                "its disk is no longer mounted"
            )

    # -- beside training --

    def _write(self, flight: _Flight) -> None:
        """This rank's file and, on the first rank, the end. Every failure is kept for the main thread."""
        name = rank_file(self._comm.rank)
        try:
            facts = self._write_own(flight, flight.partial / name)
            if self._is_first:
                name = MANIFEST
                self._finish(flight, {self._comm.rank: facts})
        except BaseException as error:  # nothing may be lost in a thread
            given_up = isinstance(error, InterruptedError) and flight.cancelled.is_set()
            flight.failure = "" if given_up else _reason(error, flight.partial / name)
            flight.stage = _Stage.FAILED
        else:
            flight.stage = _Stage.DONE
        finally:
            flight.snapshot = None

    def _write_own(self, flight: _Flight, file: Path) -> dict[str, Any]:
        assert flight.snapshot is not None
        facts = write_file(file, flight.snapshot.buffers(), cancelled=flight.cancelled.is_set)
        done = {
            "facts": asdict(facts),
            "rank_state": flight.rank_state,
            "random": {"file": file.name, "keys": flight.snapshot.random_keys},
        }
        flight.snapshot = None
        if not self._is_first:
            replace_text(_done_file(flight.partial, self._comm.rank), json.dumps(done))
        return done

    def _finish(self, flight: _Flight, done: dict[int, dict[str, Any]]) -> None:
        """The first rank's end of a save: nothing of it counts before its manifest is on the disk."""
        files = {
            name: write_file(_made(flight.partial / name), [content])
            for name, content in self._side_files.items()
        }
        done |= self._await_others(flight)
        files |= {rank_file(rank): FileFacts(**done[rank]["facts"]) for rank in sorted(done)}
        manifest = self._manifest(flight, done, files)
        for rank in done:
            _done_file(flight.partial, rank).unlink(missing_ok=True)
        replace_text(flight.partial / MANIFEST, manifest.to_json())
        publish(flight.folder)
        with suppress(OSError, UserError):  # what cannot be removed now is no loss; the next save tries again
            prune(self._directory, keep=self._keep, keep_every=self._keep_every)

    def _await_others(self, flight: _Flight) -> dict[int, dict[str, Any]]:
        """What the other ranks say of their files, once all of them are on the disk."""
        missing = set(self._comm["world"].ranks) - {self._comm.rank}
        told: dict[int, dict[str, Any]] = {}
        pause = _FIRST_LOOK_S
        while missing:
            there = set(os.listdir(flight.partial))  # a look at each name could be answered from a cache
            for rank in sorted(missing):
                file = _done_file(flight.partial, rank)
                if file.name in there:
                    told[rank] = json.loads(file.read_text())
            missing -= told.keys()
            if missing and flight.cancelled.wait(pause):
                raise InterruptedError("given up, as another rank has failed")
            pause = min(2 * pause, _LONGEST_LOOK_S)
        return told

    def _manifest(
        self, flight: _Flight, done: Mapping[int, Mapping[str, Any]], files: Mapping[str, FileFacts]
    ) -> Manifest:
        plan = self._model.plan
        return Manifest(
            step=flight.step,
            layout=LayoutFacts.of(plan.layout),
            model=ModelFacts(
                config=json.loads(self._side_files["config.json"]),
                dtype=dtype_name(self._model.dtype),
                tied=plan.spec.tie_word_embeddings,
            ),
            num_updates=flight.num_updates,
            config=self._config,
            files=files,
            tensors=self._tensors(flight.num_updates),
            rank_state={
                rank: told["rank_state"] for rank, told in done.items() if told["rank_state"] is not None
            },
            random={rank: told["random"] for rank, told in done.items()},
            rankloom_version=__version__,
            **flight.manifest,
        )

    def _tensors(self, num_updates: int) -> dict[str, StoredTensor]:
        return stored_tensors(self._model.plan, stored_kinds(self._model.dtype, num_updates=num_updates))


def save(
    model: ShardedModel,
    optimizer: ShardedAdamW,
    directory: str | Path,
    *,
    step: int,
    state: Mapping[str, Any],
    **options: Any,
) -> Path:
    """One checkpoint, complete when this returns; a collective of all ranks. ``options`` as `Checkpointer`
    takes them."""
    checkpointer = Checkpointer(model, optimizer, directory, background=False, **options)
    return checkpointer.save(step, state=state)


def _plain(value: Any) -> Any:
    """A copy that later changes do not reach. Raises TypeError for what is no JSON."""
    return json.loads(json.dumps(value))


def _done_file(partial: Path, rank: int) -> Path:
    return partial / f"rank-{rank:05d}.done.json"


def _made(file: Path) -> Path:
    """The file, with its folder there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _writable(prepare: Any, folder: Path) -> None:
    try:
        prepare(folder)
    except OSError as error:
        raise RunError(
            f"checkpoint.dir: {folder.parent} cannot be written: {error.strerror or error}"
        ) from error


def _side_files(model: ShardedModel, tokenizer: Any) -> dict[str, bytes]:
    """config.json and the like, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_configs(model, folder, tokenizer)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _reason(error: BaseException, file: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or file}: {error.strerror or error}"
    return f"{file}: {type(error).__name__}: {error}"
