"""Rows of training steps by reference: the owner puts its lane's into a store, all its ranks fetch them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rankloom.comm import Communicator
from rankloom.data import Counts, LaneMicrobatch, Row
from rankloom.data.delivery import Delivery
from rankloom.driver.envelopes import Envelope
from rankloom.errors import RunError
from rankloom.train.batches import Batches, PlannedBatches, StepFacts

__all__ = ["FetchedBatches", "Store"]


class Store(Protocol):
    """Where arrays are put once and read by many, on any node."""

    def put(self, value: Any) -> Any:
        """Returns a reference, which is small and travels."""

    def get(self, reference: Any) -> Any: ...


class FetchedBatches:
    """The batches of one rank (see `Batches`): those of a step are what an envelope refers to.

    On a lane's owner `load` makes envelopes; on every rank of the lane `accept` takes one before its step.
    """

    def __init__(self, batches: Batches, delivery: Delivery, comm: Communicator, *, store: Store) -> None:
        self.lane = batches.lane
        self._batches = batches
        self._is_owner = delivery.is_owner
        self._device = comm.device
        self._activity = comm.activity
        self._where = f"rank {comm.rank} ({comm.layout.coords(comm.rank).describe()})"
        self._store = store
        self._sent: Envelope | None = None
        self._read_s: dict[int, float] = {}
        self._accepted: Envelope | None = None

    def load(self, step0: int) -> Envelope:
        """The rows of step ``step0`` (from 0) of this lane, in the store. No collective; asked again for the
        same step, it gives the same. Raises what reading them raises, and RunError on other ranks than the
        owner."""
        if not self._is_owner:
            raise RunError(f"{self._where} was asked for the rows of lane {self.lane}, which another reads")
        if self._sent is None or self._sent.step != step0 + 1:
            self._sent = self._read(step0)
        return self._sent

    def _read(self, step0: int) -> Envelope:
        self._activity.phase = f"step {step0 + 1}: loading the rows of lane {self.lane}"
        microbatches, self._read_s[step0] = self._batches.read(step0)
        held = [microbatch for microbatch in microbatches if microbatch is not None]
        planes = np.stack([_planes(microbatch) for microbatch in held])
        return Envelope.of(
            [row.row_id for microbatch in held for row in microbatch.rows],
            lane=self.lane,
            step=step0 + 1,
            num_microbatches=len(held),
            num_tokens=sum(int(microbatch.real_lengths.sum()) for microbatch in held),
            num_bytes=planes.nbytes,
            batch=self._store.put(planes),
        )

    def accept(self, envelope: Envelope, step0: int) -> None:
        """Trains on these rows in step ``step0``. Raises RunError where they are of another lane or step, or
        not the rows that this rank expects for its lane."""
        if (envelope.lane, envelope.step) != (self.lane, step0 + 1):
            raise RunError(
                f"{self._where} is in lane {self.lane} and was given rows of lane {envelope.lane}, step "
                f"{envelope.step}, for step {step0 + 1}"
            )
        arrived = envelope.rows
        wanted = [row.row_id for rows in self._batches.rows(step0) for row in rows]
        if arrived != wanted:
            raise RunError(f"{self._where} was given rows {arrived} where its lane has rows {wanted}")
        self._accepted = envelope

    def deliver(self, planes: Any, expected: Sequence[Row]) -> torch.Tensor:
        """A microbatch as the model takes it, int64 [4, B, S] on the device: the `Deliver` of a Worker."""
        return torch.from_numpy(np.array(planes)).to(self._device).long()  # what is in a store is read-only

    # -- Batches --

    @property
    def planned(self) -> PlannedBatches | None:
        return self._batches.planned

    def verify(self, step0: int) -> None:
        self._batches.verify(step0)

    def read_ahead(self, *, first: int, last: int) -> None:
        self._batches.read_ahead(first=first, last=last)

    def rows(self, step0: int) -> Sequence[tuple[Row, ...]]:
        return self._batches.rows(step0)

    def facts(self, step0: int) -> StepFacts:
        return self._batches.facts(step0)

    def read(self, step0: int) -> tuple[Sequence[Any], float]:
        """The arrays of the accepted envelope, one a microbatch; the seconds that its owner waited for the
        loader and this rank for the store."""
        if self._accepted is None or self._accepted.step != step0 + 1:
            raise RunError(f"{self._where} was given no rows for step {step0 + 1}")
        since = time.perf_counter()
        planes: NDArray[np.int32] = self._store.get(self._accepted.batch)
        self._accepted = None
        waited_s = self._read_s.pop(step0, 0.0) + time.perf_counter() - since
        return list(planes), waited_s

    def report(self, step0: int) -> list[list[dict[str, Any]]]:
        return self._batches.report(step0)

    def left_out(self) -> tuple[Mapping[str, int], str]:
        return self._batches.left_out()

    def state(self, num_steps: int, consumed: Counts) -> dict[str, Any]:
        return self._batches.state(num_steps, consumed)

    def lane_state(self, num_steps: int) -> dict[str, Any] | None:
        return self._batches.lane_state(num_steps)

    def restore(
        self, state: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], *, allowed: Sequence[str]
    ) -> tuple[str, ...]:
        return self._batches.restore(state, lanes, allowed=allowed)

    def close(self) -> None:
        self._batches.close()


def _planes(microbatch: LaneMicrobatch) -> NDArray[np.int32]:
    """Input ids, labels, positions and document ids: [4, B, S]."""
    return np.stack(
        [microbatch.input_ids, microbatch.labels, microbatch.position_ids, microbatch.document_ids]
    )
