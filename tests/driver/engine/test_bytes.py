"""What the driver receives while batches grow."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankloom.driver.connection import RayCluster
from rankloom.driver.controller import SFTController
from rankloom.driver.envelopes import Envelope
from rankloom.driver.gang import Gang
from rankloom.driver.group import Patience
from rankloom.driver.placement import Placement
from tests.driver.engine import standins
from tests.driver.engine.loads import MIB, NUM_LANES, loads
from tests.runtime.runs import Recorder

LIMIT = 64 * 1024


class Measured:
    """A gang; ``received``: bytes of the results that were fetched, call by call."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self.ranks, self.share = gang.ranks, gang.share
        self.submit = gang.submit
        self.received: list[tuple[str, int]] = []

    def gather(
        self, handles: Mapping[int, Any], wanted: Sequence[int], *, patience: Patience | None = None
    ) -> list[Any]:
        found = self._gang.gather(handles, wanted, patience=patience)
        method = next(iter(handles.values())).method
        self.received.append((method, len(pickle.dumps([_plain(result) for result in found]))))
        return found


def _plain(result: Any) -> Any:
    """A reference cannot be pickled by the standard library; it is its id and its owner's address."""
    if isinstance(result, Envelope):
        return {**vars(result), "batch": result.batch.binary() + bytes(256)}
    return result


@pytest.mark.usefixtures("cluster")
def test_the_driver_receives_little_however_large_batches_are(cluster: RayCluster, tmp_path: Path) -> None:
    resolved = standins.config(NUM_LANES, tensor_parallel_num_weight_shards=2)
    assert resolved.layout.batch_parallel_size == NUM_LANES
    recorder = Recorder()
    with (
        Placement.make(cluster.nodes(), resolved.layout, device="cpu") as placement,
        Gang.start(placement, loads, (resolved,), log_folder=tmp_path, rendezvous=False) as gang,
    ):
        measured = Measured(gang)
        SFTController(resolved, measured, reporter=recorder).run()
    assert [row["bytes"] * NUM_LANES // MIB for row in recorder.rows] == [1, 4, 16, 64]
    steps = [size for method, size in measured.received if method in ("load_batch", "train")]
    per_step = [loaded + trained for loaded, trained in zip(steps[::2], steps[1::2], strict=True)]
    assert len(per_step) == 4
    assert max(per_step) < LIMIT
