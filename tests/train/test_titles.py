"""What ps, top and py-spy show of the ranks of the local engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankloom.train import run_local
from rankloom.train.reporting import ForwardingReporter
from tests.pool import RankPool
from tests.train import runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS shows titles to their owner alone")


def note_titles(
    *args: Any, rank: int, world_size: int, init_method: str, **kwargs: Any
) -> Mapping[str, object]:
    """Rank 0 looks at its siblings while they all are there."""
    import torch.distributed as dist

    runs.join(rank, world_size, init_method)
    if rank == 0:
        shown = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True)
        kwargs["reporter"].note(shown.stdout)
    dist.barrier()
    return {}


def test_each_rank_carries_its_number_in_its_title(tmp_path: Path, rank_pool: RankPool) -> None:
    events: list[Any] = []
    run_local(runs.config(tmp_path), run=note_titles, reporter=ForwardingReporter(events.append))
    shown = next(event[1][0] for event in events if event[0] == "note").splitlines()
    assert {f"rankloom rank {rank}" for rank in range(4)} <= set(shown)
