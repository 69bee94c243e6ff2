"""All lanes of a run in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.state import EnergonState
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import EnergonRow
from rankloom.data.rows import Counts
from rankloom.records.energon import EnergonData

SETTINGS = RowSettings(max_seq_length=64, packing_window=8)
Numbers = list[tuple[int, ...]]


class Run:
    """``num_lanes`` lanes that share the virtual lanes, and the order of rows in a global batch."""

    def __init__(
        self,
        data: EnergonData,
        encoder: ChatEncoder,
        *,
        num_lanes: int,
        num_virtual_lanes: int = 8,
        settings: RowSettings = SETTINGS,
        seed: int = 0,
    ) -> None:
        self.lanes = [
            VirtualLanes(
                data,
                num_virtual_lanes=num_virtual_lanes,
                lane=lane,
                num_lanes=num_lanes,
                settings=settings,
                seed=seed,
                encoder=encoder,
            )
            for lane in range(num_lanes)
        ]
        self.consumed = 0
        self.settings = {"data.num_virtual_lanes": num_virtual_lanes, "data.seed": seed}

    def rows(self, count: int) -> list[EnergonRow]:
        """The next rows of the run, in the order of the global batch: row i is of lane i mod lanes."""
        by_lane = [lane.rows(self.consumed, count) for lane in self.lanes]
        found = [by_lane[row % len(self.lanes)].pop(0) for row in range(self.consumed, self.consumed + count)]
        assert not any(by_lane)
        self.consumed += count
        return found

    def numbers(self, count: int) -> Numbers:
        """The samples in the next rows."""
        return [numbers(row) for row in self.rows(count)]

    def saved(self, *, rows: int | None = None) -> Mapping[str, Any]:
        """The state after so many rows, as it comes back from a file."""
        at = self.consumed if rows is None else rows
        state = EnergonState.of(
            [lane.state(at) for lane in self.lanes],
            step=3,
            consumed=Counts(at, 0, 0, 0),
            settings=self.settings,
        )
        found: Mapping[str, Any] = json.loads(json.dumps(state.to_json()))
        return found

    def restore(self, content: Mapping[str, Any]) -> Run:
        state = EnergonState.from_json(content)
        state.check(self.settings)
        self.consumed = state.consumed.rows
        for lane in self.lanes:
            lane.restore(self.consumed, state.virtual_lanes)
        return self


def numbers(row: EnergonRow) -> tuple[int, ...]:
    return tuple(chat.number for chat in row.chats)
