"""Time to list all groups of all kinds in big worlds; prints a table and one line of JSON.

    python benchmarks/layout_groups.py [--repeats 5]

A kind is a (view, axes): everything named in the two views. Reported is the best and the median of the
repeats, for both rank orders.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from rankloom.layout import RANK_ORDERS, GTPParallelLayout
from rankloom.layout.axes import AXES
from rankloom.layout.views import TOKENS_AXES, WEIGHTS_AXES

WORLD_SIZES = (1_024, 16_384, 131_072)


def layout_of(world_size: int, rank_order: str) -> GTPParallelLayout:
    """A layout that uses all six axes."""
    return GTPParallelLayout.resolve(
        world_size=world_size,
        tensor_model_parallel_size=4,
        tensor_parallel_num_weight_shards=32,
        tensor_parallel_num_sequence_shards=8,
        context_parallel_size=4,
        pipeline_model_parallel_size=4,
        rank_order=rank_order,
    )


def list_all_groups(layout: GTPParallelLayout) -> int:
    """Every group of every axis name of both views; returns how many there are."""
    kinds = [(layout.weights, axes) for axes in (*AXES, *WEIGHTS_AXES)]
    kinds += [(layout.tokens, axes) for axes in (*AXES, *TOKENS_AXES)]
    return sum(len(view.groups(axes)) for view, axes in kinds)


def measure(world_size: int, rank_order: str, *, repeats: int) -> dict[str, object]:
    """Best and median seconds to make the layout and list its groups."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        num_groups = list_all_groups(layout_of(world_size, rank_order))
        seconds.append(time.perf_counter() - start)
    return {
        "world_size": world_size,
        "rank_order": rank_order,
        "num_groups": num_groups,
        "best_s": min(seconds),
        "median_s": statistics.median(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rows = [measure(size, order, repeats=repeats) for size in WORLD_SIZES for order in RANK_ORDERS]
    print(f"{'ranks':>8}  {'rank order':<16} {'groups':>10} {'best':>10} {'median':>10}")
    for row in rows:
        times = f"{row['best_s']:>9.4f}s {row['median_s']:>9.4f}s"
        print(f"{row['world_size']:>8}  {row['rank_order']:<16} {row['num_groups']:>10} {times}")
    print(json.dumps({"benchmark": "layout_groups", "rows": rows}))


if __name__ == "__main__":
    main()
