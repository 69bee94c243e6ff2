"""Layouts counted out by hand: nested loops over the axes in rank order, nothing shared with the package.

Independent of ``rankloom.layout`` on purpose: it knows the vocabulary, not the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st

from rankloom.layout import GTPParallelLayout

ORDERS = ("tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp")
COMPOSITES = {
    ("weights", "gtp_remat"): ("gtp_batch", "gtp_seq"),
    ("weights", "tp_gtp_remat"): ("tp", "gtp_batch", "gtp_seq"),
    ("weights", "replica"): ("dp", "cp"),
    ("weights", "gtp_remat_replica"): ("gtp_batch", "gtp_seq", "dp", "cp"),
    ("weights", "world"): ("tp", "gtp_batch", "gtp_seq", "dp", "cp", "pp"),
    ("tokens", "context"): ("cp", "gtp_seq"),
    ("tokens", "batch"): ("dp", "gtp_batch"),
    ("tokens", "lane"): ("tp", "cp", "gtp_seq", "pp"),
    ("tokens", "world"): ("tp", "gtp_batch", "gtp_seq", "dp", "cp", "pp"),
}
PRIMITIVE = ("tp", "gtp_seq", "gtp_batch", "cp", "dp", "pp")


@dataclass(frozen=True)
class Case:
    """The six sizes, an order and an offset; what a layout is made from, backwards."""

    tp: int
    gtp_seq: int
    gtp_batch: int
    cp: int
    dp: int
    pp: int
    order: str = ORDERS[0]
    offset: int = 0

    @property
    def world(self) -> int:
        return self.tp * self.gtp_seq * self.gtp_batch * self.cp * self.dp * self.pp

    def layout(self) -> GTPParallelLayout:
        return GTPParallelLayout.resolve(
            world_size=self.world,
            tensor_model_parallel_size=self.tp,
            tensor_parallel_num_weight_shards=self.tp * self.gtp_seq * self.gtp_batch,
            tensor_parallel_num_sequence_shards=self.tp * self.gtp_seq,
            context_parallel_size=self.cp,
            pipeline_model_parallel_size=self.pp,
            rank_order=self.order,
            rank_offset=self.offset,
        )

    def coordinates(self) -> dict[int, dict[str, int]]:
        """rank -> coordinate on each primitive axis, by counting ranks in six nested loops."""
        return dict(zip(count(self.offset), self._walk(), strict=False))

    def _walk(self) -> Iterator[dict[str, int]]:
        swap = self.order == ORDERS[1]
        for pp in range(self.pp):
            for dp in range(self.dp):
                for outer in range(self.gtp_batch if swap else self.cp):
                    for inner in range(self.cp if swap else self.gtp_batch):
                        cp, gtp_batch = (inner, outer) if swap else (outer, inner)
                        for gtp_seq in range(self.gtp_seq):
                            for tp in range(self.tp):
                                yield {
                                    "tp": tp,
                                    "gtp_seq": gtp_seq,
                                    "gtp_batch": gtp_batch,
                                    "cp": cp,
                                    "dp": dp,
                                    "pp": pp,
                                }

    def indices(self, at: dict[str, int]) -> dict[str, int]:
        return {
            "lane": at["dp"] * self.gtp_batch + at["gtp_batch"],
            "context": at["cp"] * self.gtp_seq + at["gtp_seq"],
            "weight_shard": at["gtp_batch"] * self.gtp_seq + at["gtp_seq"],
            "replica": at["dp"] * self.cp + at["cp"],
        }

    def groups(self, axes: tuple[str, ...]) -> list[list[int]]:
        """Ranks that agree on every axis not named, found by comparing each rank with every group so far."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, at in self.coordinates().items():
            key = tuple(value for axis, value in at.items() if axis not in axes)
            found.setdefault(key, []).append(rank)
        return sorted(found.values())


SMALL = st.sampled_from([1, 1, 2, 3, 4])
CASES = st.builds(
    Case,
    tp=st.sampled_from([1, 2, 3]),
    gtp_seq=SMALL,
    gtp_batch=SMALL,
    cp=SMALL,
    dp=SMALL,
    pp=st.sampled_from([1, 1, 2, 3]),
    order=st.sampled_from(ORDERS),
    offset=st.sampled_from([0, 0, 1, 8, 24]),
)
