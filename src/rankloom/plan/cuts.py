"""Other cuts of the same job: candidates for :mod:`rankloom.plan.alternatives`.

Each proposal keeps the world, the pipeline stages and the runtime CP, and gives the layout of its kind with
the best rating, or None where none resolves. A rating is the number of ranks in tp, and in gtp_remat groups
that cross domains: fewer are better, tp first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import gcd
from typing import Any

from rankloom.errors import UserError
from rankloom.layout import RANK_ORDERS, GTPParallelLayout
from rankloom.layout.arithmetic import CP, TP, Q, W

__all__ = ["ORDER", "Rating", "fewer_weight_shards", "fold", "other_order", "smaller_tp"]

ORDER = "rank_order"
Cut = dict[str, Any]  # settings that change
Rating = Callable[[GTPParallelLayout], tuple[int, int]]  # ranks in tp, in gtp_remat groups that cross domains


def other_order(layout: GTPParallelLayout, rating: Rating) -> GTPParallelLayout | None:
    """The ranks numbered the other way, everything else kept."""
    return _best(({ORDER: order} for order in RANK_ORDERS if order != layout.rank_order), layout, rating)


def fold(layout: GTPParallelLayout, rating: Rating) -> GTPParallelLayout | None:
    """W kept, CP traded for sequence shards: more of GTP_remat shares a sequence."""
    shards = layout.gtp_remat_num_sequence_shards
    return _best((cut for cut in _sequence_cuts(layout) if cut[Q] > shards * _degree(layout)), layout, rating)


def fewer_weight_shards(layout: GTPParallelLayout, rating: Rating) -> GTPParallelLayout | None:
    """The largest smaller W whose GTP_remat groups all stay inside; S is kept if that is possible."""
    tp = layout.tensor_model_parallel_size
    for shards in range(layout.tensor_parallel_num_weight_shards - tp, 0, -tp):
        if layout.world_size % shards == 0:
            best = _best(_sequence_cuts(layout, num_weight_shards=shards), layout, rating)
            if best is not None and rating(best)[1] == 0:
                return best
    return None


def smaller_tp(layout: GTPParallelLayout, rating: Rating) -> GTPParallelLayout | None:
    """W and S kept: more GTP_remat in place of TP."""
    tp, shards = layout.tensor_model_parallel_size, layout.gtp_remat_num_sequence_shards
    smaller = [size for size in range(tp - 1, 0, -1) if tp % size == 0]
    return _best(
        ({TP: size, Q: shards * (size if layout.sequence_parallel else 1)} for size in smaller),
        layout,
        rating,
    )


def _sequence_cuts(layout: GTPParallelLayout, *, num_weight_shards: int | None = None) -> Iterator[Cut]:
    """All (W, Q, CP) of one W with this layout's runtime CP, those with the nearest S first."""
    weight_shards = num_weight_shards or layout.tensor_parallel_num_weight_shards
    runtime = layout.runtime_context_parallel_size
    most = gcd(weight_shards // layout.tensor_model_parallel_size, runtime)
    sizes = [size for size in range(1, most + 1) if most % size == 0]
    for shards in sorted(sizes, key=lambda size: abs(size - layout.gtp_remat_num_sequence_shards)):
        yield {W: weight_shards, Q: shards * _degree(layout), CP: runtime // shards}


def _degree(layout: GTPParallelLayout) -> int:
    return layout.tensor_model_parallel_size if layout.sequence_parallel else 1


def _best(cuts: Iterable[Cut], layout: GTPParallelLayout, rating: Rating) -> GTPParallelLayout | None:
    """The layout with the best rating among those of the cuts that resolve, the first of equals."""
    layouts = [made for cut in cuts if (made := _with(layout, cut)) is not None]
    return min(layouts, key=rating, default=None)


def _with(layout: GTPParallelLayout, cut: Cut) -> GTPParallelLayout | None:
    tp = cut.get(TP, layout.tensor_model_parallel_size)
    try:
        return replace(layout, sequence_parallel=layout.sequence_parallel and tp > 1, **cut)
    except UserError:
        return None
