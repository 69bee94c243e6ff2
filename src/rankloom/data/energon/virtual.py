"""One virtual lane: a fixed part of a data set, as rows without end, from any row that was saved."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.codec import decoded, encoded, is_inside_epoch
from rankloom.data.energon.library import hushed, reason_of
from rankloom.data.energon.task import ChatTask, EncodedChat, PackedChats, RowSettings, Tally
from rankloom.errors import RankloomError, UserError
from rankloom.records.energon import EnergonData
from rankloom.records.words import by_reason

__all__ = ["EnergonRow", "VirtualLane"]

# As in Energon's documentation: samples read one after the other, and those among which the next is drawn.
SLICE_SAMPLES = 100
SHUFFLE_SAMPLES = 100
SNAPSHOT_ROWS = 16  # fewer than these are made again when a run resumes
EPOCHS_PER_SEED = 2**32


@dataclass(frozen=True)
class EnergonRow:
    """One row.

    Attributes:
        epoch: of its virtual lane, from 0; a row has samples of one epoch.
        chats: in order, at least one.
        epochs: passes over the virtual lane's part that are done after it, with the share of the last one.
    """

    epoch: int
    chats: tuple[EncodedChat, ...]
    epochs: float


@dataclass(frozen=True)
class _Mark:
    """A place to begin from: before row ``number`` of the virtual lane, row ``row`` of epoch ``epoch``.
    ``state``: Energon's; null at the beginning of an epoch. ``passed``: samples of the epoch in the rows
    before and those left out; ``skipped``: left out in all epochs."""

    number: int
    epoch: int
    row: int
    state: Any = None
    passed: int = 0
    epochs: float = 0.0
    skipped: Mapping[str, int] = field(default_factory=dict)


class VirtualLane:
    """Virtual lane ``number`` of ``num_lanes`` of a data set. One thread makes rows; another may ask for the
    state.

    Epoch e takes every sample of the part once, in an order drawn from (seed, e, number); rows do not cross
    an epoch.

    ``epochs``: passes over the part that the rows made so far have done; ``tally``: of all samples met by
    this object.
    """

    def __init__(
        self,
        data: EnergonData,
        *,
        number: int,
        num_lanes: int,
        settings: RowSettings,
        seed: int,
        encoder: ChatEncoder,
    ) -> None:
        self._data = data
        self._number = number
        self._num_lanes = num_lanes
        self._settings = settings
        self._seed = seed
        self._encoder = encoder
        self._lock = threading.RLock()
        self.tally = Tally()
        self._begin(_Mark(0, 0, 0))

    def _begin(self, mark: _Mark) -> None:
        self._marks = deque([mark])
        self._opened = mark
        self._made = mark.number
        self._epoch, self._row, self._used = mark.epoch, mark.row, 0
        self.epochs = mark.epochs
        self._rows: Iterator[tuple[EncodedChat, ...]] | None = None

    def next_row(self) -> EnergonRow:
        """Raises UserError naming the sample that is at fault, or for a part without a sample to train on."""
        with self._lock:
            chats = self._draw()
            while chats is None:
                self._end_epoch()
                chats = self._draw()
            self._made, self._row, self._used = self._made + 1, self._row + 1, self._used + len(chats)
            self.epochs = self._epoch + min(1.0, self._passed / self._num_samples)
            return EnergonRow(self._epoch, chats, self.epochs)

    def state(self, number: int) -> dict[str, Any]:
        """Plain values for JSON: how to go on with row ``number``, counted from 0, which may lie behind those
        that were made already but not before those that were forgotten."""
        with self._lock:
            assert self._marks[0].number <= number <= self._made
            mark = next(mark for mark in reversed(self._marks) if mark.number <= number)
        return {
            "rows": number,
            "epoch": mark.epoch,
            "row": mark.row,
            "made_again": number - mark.number,
            "passed": mark.passed,
            "epochs": mark.epochs,
            "skipped": dict(mark.skipped),
            "energon": None if mark.state is None else encoded(mark.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was; rows after the last place that Energon can begin from are made again."""
        energon = None if state["energon"] is None else decoded(state["energon"])
        number = state["rows"] - state["made_again"]
        place = (number, state["epoch"], state["row"], energon)
        self._begin(_Mark(*place, state["passed"], state["epochs"], state["skipped"]))
        for _ in range(state["made_again"]):
            self.next_row()

    def forget(self, number: int) -> None:
        """Rows before this one will not be asked for by `state`."""
        with self._lock:
            while len(self._marks) > 1 and self._marks[1].number <= number:
                self._marks.popleft()

    @property
    def skipped(self) -> Counter[str]:
        """Samples left out so far, by reason, each time they are."""
        left_out = Counter(self._opened.skipped)
        if self._rows is not None:
            left_out.update(self._task.skipped)
        return left_out

    def _draw(self) -> tuple[EncodedChat, ...] | None:
        """The chats of the next row of the epoch; None at its end."""
        try:
            with hushed():
                if self._rows is None:
                    self._rows = self._open(self._marks[-1])
                self._remember()
                return next(self._rows, None)
        except RankloomError:
            raise
        except Exception as error:
            raise UserError(
                f"{self._data.name}, {self._name}: Energon cannot read it: {reason_of(error)}"
            ) from error

    def _open(self, mark: _Mark) -> Iterator[tuple[EncodedChat, ...]]:
        """An epoch, from ``mark`` on."""
        task = self._task = ChatTask(self._encoder, self._settings, self.tally)
        self._opened = mark
        packs = self._settings.packing != "none"
        config = WorkerConfig(
            rank=self._number,
            world_size=self._num_lanes,
            num_workers=0,
            seed_offset=self._seed * EPOCHS_PER_SEED + mark.epoch,
            global_error_handler=task.on_error,
            restore_error_handler=task.on_error,
        )
        dataset = get_train_dataset(
            self._data.path,
            worker_config=config,
            batch_size=None,
            packing_buffer_size=self._settings.packing_window if packs else None,
            shuffle_buffer_size=SHUFFLE_SAMPLES,
            max_samples_per_sequence=SLICE_SAMPLES,
            task_encoder=task,
            repeat=False,
        )
        self._num_samples = len(dataset)
        self._loader = get_savable_loader(dataset, watchdog_timeout_seconds=None, gc_collect_every_n_steps=0)
        self._loader.pin_memory = False  # rows go through a process group
        self._loader.generator = torch.Generator()  # not the one that the model's dropout draws from
        if mark.state is not None:
            # A copy: Energon changes what it is given, and the mark may be saved once more.
            self._loader.restore_state_rank(deepcopy(mark.state))
        return map(_chats, iter(self._loader))

    def _remember(self) -> None:
        """A mark before the next row, where the last one is far and Energon can begin here."""
        if self._made - self._marks[-1].number < SNAPSHOT_ROWS:
            return
        state = self._loader.save_state_rank()
        if is_inside_epoch(state):
            place = (self._made, self._epoch, self._row, state)
            self._marks.append(_Mark(*place, self._passed, self.epochs, self.skipped))

    def _end_epoch(self) -> None:
        if self._row == 0:
            why = by_reason(self.skipped) or "it is empty"
            raise UserError(f"{self._data.name}, {self._name}: no sample is left to train on ({why})")
        mark = _Mark(self._made, self._epoch + 1, 0, epochs=self.epochs, skipped=self.skipped)
        self._marks.append(mark)
        self._opened, self._rows = mark, None
        self._epoch, self._row, self._used = mark.epoch, 0, 0

    @property
    def _passed(self) -> int:
        """Samples of the epoch in rows, and those left out on the way."""
        return self._opened.passed + self._used + self._task.skipped.total()

    @property
    def _name(self) -> str:
        return f"virtual lane {self._number} of {self._num_lanes}"


def _chats(sample: EncodedChat | PackedChats) -> tuple[EncodedChat, ...]:
    return sample.chats if isinstance(sample, PackedChats) else (sample,)
