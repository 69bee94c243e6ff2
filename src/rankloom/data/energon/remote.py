"""The virtual lanes of a lane in processes of their own: the same rows, made beside the training."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import EnergonRow
from rankloom.data.processes import Processes
from rankloom.errors import RankloomError
from rankloom.records.energon import EnergonData

__all__ = ["LaneRecipe", "RemoteVirtualLanes"]

Order = tuple[str, tuple[Any, ...]]  # a method of `_Share`, and its arguments


@dataclass(frozen=True)
class LaneRecipe:
    """What `VirtualLanes` of a lane are made of; arguments of the same names."""

    data: EnergonData
    num_virtual_lanes: int
    lane: int
    num_lanes: int
    settings: RowSettings
    seed: int
    tokenizer: PreTrainedTokenizerBase
    name: str
    train_on: str

    def open(self, share: tuple[int, int] = (0, 1)) -> VirtualLanes:
        """Raises UserError as `VirtualLanes`."""
        return VirtualLanes(
            self.data,
            num_virtual_lanes=self.num_virtual_lanes,
            lane=self.lane,
            num_lanes=self.num_lanes,
            settings=self.settings,
            seed=self.seed,
            encoder=ChatEncoder(self.tokenizer, name=self.name, train_on=self.train_on),
            share=share,
        )


@dataclass
class _Share:
    """A part of the virtual lanes, opened in the process that it is sent to; called with orders."""

    recipe: LaneRecipe
    share: tuple[int, int]
    _lanes: VirtualLanes | None = field(default=None, init=False)

    def __call__(self, order: Order) -> object:
        if self._lanes is None:
            self._lanes = self.recipe.open(self.share)
        method, arguments = order
        return getattr(self, method)(self._lanes, *arguments)

    @staticmethod
    def rows(lanes: VirtualLanes, first: int, count: int) -> tuple[list[EnergonRow], float, Counter[str]]:
        return lanes.rows(first, count), lanes.epochs, lanes.skipped

    @staticmethod
    def state(lanes: VirtualLanes, rows: int) -> dict[int, dict[str, Any]]:
        return lanes.state(rows)

    @staticmethod
    def restore(
        lanes: VirtualLanes, rows: int, states: Mapping[int, Mapping[str, Any]]
    ) -> tuple[float, Counter[str]]:
        lanes.restore(rows, states)
        return lanes.epochs, lanes.skipped


class RemoteVirtualLanes:
    """`VirtualLanes` of a lane, shared out over ``num_workers`` processes, or fewer where there are not so
    many of them. One thread may ask for rows, another for the state.

    Raises, besides what `VirtualLanes` raises, RunError where a process is gone.
    """

    def __init__(self, recipe: LaneRecipe, num_workers: int) -> None:
        self.lane, self.num_lanes = recipe.lane, recipe.num_lanes
        self.num_virtual_lanes = recipe.num_virtual_lanes
        number = min(num_workers, self.num_virtual_lanes // self.num_lanes)
        self._processes = Processes(
            [_Share(recipe, (place, number)) for place in range(number)], lane=recipe.lane
        )
        self._lock = threading.Lock()
        self._epochs = [0.0] * number
        self._skipped: list[Counter[str]] = [Counter() for _ in range(number)]

    def rows(self, first: int, count: int) -> list[EnergonRow]:
        answers = self._ask("rows", first, count, when=f"while it made rows {first} to {first + count - 1}")
        by_share = []
        for place, (rows, epochs, skipped) in enumerate(answers):
            by_share.append(iter(rows))
            self._epochs[place], self._skipped[place] = epochs, skipped
        mine = (row for row in range(first, first + count) if row % self.num_lanes == self.lane)
        return [next(by_share[self._share_of(row % self.num_virtual_lanes)]) for row in mine]

    @property
    def epochs(self) -> float:
        return sum(self._epochs)

    @property
    def skipped(self) -> Counter[str]:
        return sum(self._skipped, Counter())

    def state(self, rows: int) -> dict[int, dict[str, Any]]:
        answers = self._ask("state", rows, when="while it told its state")
        return {number: state for found in answers for number, state in found.items()}

    def restore(self, rows: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        mine = {number: state for number, state in states.items() if number % self.num_lanes == self.lane}
        answers = self._ask("restore", rows, mine, when="while it restored its state")
        for place, (epochs, skipped) in enumerate(answers):
            self._epochs[place], self._skipped[place] = epochs, skipped

    @property
    def pids(self) -> list[int]:
        return self._processes.pids

    def end(self) -> None:
        """Ends the processes; whoever waits for them gets a RunError."""
        self._processes.end()

    def close(self) -> None:
        """`end`, once nobody else uses this any more."""
        self._processes.close()

    def _share_of(self, number: int) -> int:
        """Which process has a virtual lane."""
        return (number // self.num_lanes) % len(self._processes)

    def _ask(self, method: str, *arguments: Any, when: str) -> Sequence[Any]:
        with self._lock:
            for number in range(len(self._processes)):
                self._processes.order(number, (method, arguments), when=when)
            found, problems = [], []
            for number in range(len(self._processes)):  # all of them, so that none is taken for a later one
                try:
                    found.append(self._processes.answer_of(number, when=when))
                except RankloomError as error:
                    problems.append(error)
        if problems:
            raise problems[0]
        return found
