"""What a call costs the driver: who gets which arguments, and whose results come back, for many ranks.

python benchmarks/dispatch.py [--repeats 20] [--json FILE]

``call`` is everything but the transport: checks, the arguments of every rank, and putting results in order,
with a group that only notes what it is given. ``in process`` runs the method of a worker object for every
rank as well. Of the repeats, the median and the slowest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankloom.driver import WITHIN_LANE, BoundCalls, LocalGroup, NamedAxes, call
from rankloom.layout import DRIVER_AXES, GTPParallelLayout

WORLD_SIZES = (1_000, 10_000, 100_000)


class Worker:
    """As many calls as a real one has, of the same kinds."""

    @call(shard="data_parallel", replicate=WITHIN_LANE)
    def train(self, batch: object, step: int, *, lr: float) -> object:
        return batch

    @call(shard="data_parallel", replicate=WITHIN_LANE)
    def get_logprobs(self, sequences: object) -> object:
        return sequences

    @call(shard="data_parallel", leader_only=WITHIN_LANE, collective=False, takes_pieces=False)
    def load_batch(self, step: int) -> int:
        return step

    @call(replicate=DRIVER_AXES)
    def save(self, folder: str) -> str:
        return folder


class Notes:
    """A group whose ranks answer with their number, at once."""

    def __init__(self, layout: GTPParallelLayout) -> None:
        self.ranks = frozenset(layout.ranks)

    def share(self, value: Any) -> Any:
        return value

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        return rank

    def gather(self, handles: Mapping[int, int], wanted: Sequence[int], **options: Any) -> list[Any]:
        return [handles[rank] for rank in wanted]


def layout_of(world_size: int) -> GTPParallelLayout:
    """TP 4, 2 sequence shards and 5 batch shards of GTP_remat, CP 5: a lane is 40 ranks."""
    return GTPParallelLayout.resolve(
        world_size=world_size,
        tensor_model_parallel_size=4,
        tensor_parallel_num_weight_shards=40,
        tensor_parallel_num_sequence_shards=8,
        context_parallel_size=5,
    )


def timed(work: Callable[[], object], *, repeats: int) -> dict[str, float]:
    """Median and slowest, in milliseconds."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    return {"median_ms": statistics.median(taken), "slowest_ms": max(taken)}


def measure(world_size: int, *, repeats: int) -> list[dict[str, object]]:
    layout = layout_of(world_size)
    axes = NamedAxes.of(layout)
    calls = BoundCalls(axes, Worker)
    notes, local = Notes(layout), LocalGroup({rank: Worker() for rank in layout.ranks})
    pieces = [[lane] for lane in range(layout.batch_parallel_size)]

    def train(group: Any) -> object:
        return calls.run(group, "train", 1, pieces=pieces, lr=0.1)

    works: dict[str, Callable[[], object]] = {
        "axes, once": lambda: NamedAxes.of(layout),
        "plan of 4 calls, once": lambda: BoundCalls(axes, Worker),
        "coordinates of 1,000 ranks": lambda: [axes.get_worker_coords(rank) for rank in range(1_000)],
        "call train": lambda: train(notes),
        "call load_batch": lambda: calls.run(notes, "load_batch", 1),
        "call save": lambda: calls.run(notes, "save", "there"),
        "train, in process": lambda: train(local),
    }
    facts = {"world_size": world_size, "lanes": layout.batch_parallel_size}
    return [{**facts, "what": what, **timed(work, repeats=repeats)} for what, work in works.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    rows = [row for size in WORLD_SIZES for row in measure(size, repeats=given.repeats)]
    print(f"{'ranks':>8} {'lanes':>6}  {'':<28} {'median':>11} {'slowest':>11}")
    for row in rows:
        times = f"{row['median_ms']:>8.2f} ms {row['slowest_ms']:>8.2f} ms"
        print(f"{row['world_size']:>8,} {row['lanes']:>6,}  {row['what']:<28} {times}")
    if given.json is not None:
        given.json.write_text(json.dumps({"benchmark": "dispatch", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
