"""The virtual lanes that a lane of the run owns, and the rows they give to each global batch.

A data set is always cut into the same V virtual lanes. Row r of the run, counted over all steps, is the next
one of virtual lane r mod V, and is trained on lane r mod L of the L lanes there are. V is a multiple of L, so
virtual lanes k, k + L, k + 2L ... belong to lane k alone, and which rows a step has does not depend on L.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rankloom.config.energon import check_virtual_lanes
from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.samples import split_of
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import EnergonRow, VirtualLane
from rankloom.errors import RunError, UserError
from rankloom.records.energon import EnergonData
from rankloom.records.words import counted

__all__ = ["VirtualLanes", "num_samples", "refuse_few_samples"]


def num_samples(data: EnergonData) -> int:
    """Samples of the data set, before any is left out: of a folder, those of its split "train".

    Raises UserError where Energon cannot read what was prepared.
    """
    return sum(map(len, split_of(data)))


class VirtualLanes:
    """Those of lane ``lane`` of ``num_lanes``. One thread at a time.

    Args:
        data: the prepared data set.
        num_virtual_lanes: V.
        settings: how samples become rows.
        seed: of the order in each epoch.
        encoder: tokenizer and template.
        share: (place, number): of the virtual lanes of the lane, every ``number``-th from ``place`` on.

    Raises:
        UserError: V is not a multiple of the lanes, or the data set has fewer samples than V.
    """

    def __init__(
        self,
        data: EnergonData,
        *,
        num_virtual_lanes: int,
        lane: int,
        num_lanes: int,
        settings: RowSettings,
        seed: int,
        encoder: ChatEncoder,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        assert 0 <= lane < num_lanes
        check_virtual_lanes(num_virtual_lanes, num_lanes)
        refuse_few_samples(data, num_virtual_lanes)
        self.lane = lane
        self.num_lanes = num_lanes
        self.num_virtual_lanes = num_virtual_lanes
        self._next = 0  # row of the run, of all lanes
        self._owned = {
            number: VirtualLane(
                data,
                number=number,
                num_lanes=num_virtual_lanes,
                settings=settings,
                seed=seed,
                encoder=encoder,
            )
            for number in range(lane, num_virtual_lanes, num_lanes)[share[0] :: share[1]]
        }
        self._epochs = dict.fromkeys(self._owned, 0.0)

    def rows(self, first: int, count: int) -> list[EnergonRow]:
        """Of rows ``first`` .. ``first + count - 1`` of the run, which follow those taken before, the lane's
        own, in order.

        Raises:
            UserError: a sample is bad (it is named), or no sample of a virtual lane can be trained on.
        """
        assert first == self._next, (first, self._next)
        found = []
        for row in range(first, first + count):
            number = row % self.num_virtual_lanes
            if number in self._owned:
                found.append(self._owned[number].next_row())
                self._epochs[number] = found[-1].epochs
        self._next = first + count
        return found

    @property
    def epochs(self) -> float:
        """Passes over their parts of the data set that the owned virtual lanes have done, added up."""
        return sum(self._epochs.values())

    @property
    def skipped(self) -> Counter[str]:
        """Samples left out so far, by reason, each time they are."""
        return sum((lane.skipped for lane in self._owned.values()), Counter())

    @property
    def rows_per_sample(self) -> float:
        """Rows of an epoch for each sample of the data set, left out or not, as far as samples were met."""
        tallies = [lane.tally for lane in self._owned.values()]
        encoded, packed, rows = (
            sum(getattr(tally, what) for tally in tallies) for what in ("encoded", "packed", "rows")
        )
        met = encoded + self.skipped.total()
        return (encoded / met) * (rows / packed if packed else 1.0) if met else 0.0

    def state(self, rows: int) -> dict[int, dict[str, Any]]:
        """Of each owned virtual lane, where it stands after ``rows`` rows of the run, as plain values. Rows
        may have been taken beyond, and rows before are forgotten."""
        states = {}
        for number, lane in self._owned.items():
            done = self._rows_before(rows, number)
            lane.forget(done)
            states[number] = lane.state(done)
        return states

    def restore(self, rows: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Goes on with row ``rows`` of the run. ``states`` holds the owned virtual lanes, maybe others too.

        Raises:
            RunError: one is missing, or is of another place in the run.
        """
        for number, lane in self._owned.items():
            state = states.get(number)
            if state is None or state["rows"] != self._rows_before(rows, number):
                what = "is not in the state" if state is None else f"stands at its row {state['rows']}"
                raise RunError(
                    f"virtual lane {number} of {self.num_virtual_lanes} {what}; after {rows} rows of the run "
                    f"it is to go on with its row {self._rows_before(rows, number)}"
                )
            lane.restore(state)
            self._epochs[number] = lane.epochs
        self._next = rows

    def _rows_before(self, rows: int, number: int) -> int:
        """Rows of a virtual lane among the first ``rows`` of the run."""
        return max(0, -(-(rows - number) // self.num_virtual_lanes))


def refuse_few_samples(data: EnergonData, num_virtual_lanes: int) -> None:
    """Raises UserError where a virtual lane would be empty."""
    found = num_samples(data)
    if found < num_virtual_lanes:
        raise UserError(
            f"{data.name}: has {counted(found, 'sample')}, fewer than data.num_virtual_lanes "
            f"{num_virtual_lanes}; each virtual lane needs one, and better hundreds: set it to at most "
            f"{found}"
        )
