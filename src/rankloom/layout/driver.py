"""How a driver may get the lanes wrong: reshape(PP, -1, CP, TP) of the ranks, compared with the layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankloom.layout.axes import IntArray
from rankloom.layout.gtp import GTPParallelLayout

DRIVER_AXES = ("pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel")


@dataclass(frozen=True)
class ReshapeOutcome:
    """What reshape(PP, -1, ``context_parallel_size``, TP) makes of a layout's ranks.

    ``num_lanes`` is the true number, ``num_reshaped_lanes`` what the reshape counts; ``wrong_ranks`` are the
    global ranks it puts in another lane than the layout, with ``right_lanes`` and ``reshaped_lanes`` beside.
    """

    context_parallel_size: int
    num_lanes: int
    num_reshaped_lanes: int
    wrong_ranks: tuple[int, ...]
    right_lanes: tuple[int, ...]
    reshaped_lanes: tuple[int, ...]

    @property
    def wrong(self) -> bool:
        """Whether the reshape puts any rank in a wrong lane."""
        return bool(self.wrong_ranks)

    def describe(self, *, limit: int = 3) -> str:
        """One sentence for people: how many ranks are wrong, and the first few of them."""
        cut = f"reshape(PP, -1, {self.context_parallel_size}, TP)"
        if not self.wrong:
            return f"{cut} puts every rank in its lane"
        shown = [
            f"rank {rank} in lane {given} instead of {right}"
            for rank, given, right in zip(
                self.wrong_ranks, self.reshaped_lanes, self.right_lanes, strict=True
            )
        ][:limit]
        counts = (
            ""
            if self.num_lanes == self.num_reshaped_lanes
            else (f" and counts {self.num_reshaped_lanes} lanes instead of {self.num_lanes}")
        )
        more = ", ..." if len(self.wrong_ranks) > limit else ""
        return f"{cut} puts {len(self.wrong_ranks)} ranks in the wrong lane{counts}: {', '.join(shown)}{more}"


def reshape_outcome(layout: GTPParallelLayout, *, context_parallel_size: int | None = None) -> ReshapeOutcome:
    """Compare reshape(PP, -1, CP, TP) of the rank numbers with the lanes of the layout.

    ``context_parallel_size`` is the degree the driver reshapes with; by default the runtime degree (CP * S).
    With that, ranks come out wrong exactly when CP > 1 and B > 1 in ``tp-gtp-cp-dp-pp``, and never in
    ``tp-cp-gtp-dp-pp``. With the configured CP and S > 1 it counts S times too many lanes in either order.
    """
    cp = layout.runtime_context_parallel_size if context_parallel_size is None else context_parallel_size
    pp, tp = layout.pipeline_model_parallel_size, layout.tensor_model_parallel_size
    reshaped = np.arange(layout.world_size, dtype=np.int64).reshape(pp, -1, cp, tp)
    lane_of_cell = np.broadcast_to(np.arange(reshaped.shape[1])[None, :, None, None], reshaped.shape)
    given: IntArray = lane_of_cell.reshape(-1).astype(np.int64)
    right = layout.coord_arrays()["lane"]
    wrong = np.flatnonzero(given != right)
    return ReshapeOutcome(
        context_parallel_size=cp,
        num_lanes=layout.batch_parallel_size,
        num_reshaped_lanes=reshaped.shape[1],
        wrong_ranks=tuple((wrong + layout.rank_offset).tolist()),
        right_lanes=tuple(right[wrong].tolist()),
        reshaped_lanes=tuple(given[wrong].tolist()),
    )
