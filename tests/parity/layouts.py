"""The layouts of the parity tables, all for a global batch of 8 rows of 96 tokens.

The global batch never changes, so the size of a microbatch decides how many there are: 1, 2 or 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rankloom.layout import GTPParallelLayout

__all__ = ["LAYOUTS", "LONG_LAYOUTS", "Layout", "layout"]

_KEYS = {
    "TP": "tensor_model_parallel_size",
    "W": "tensor_parallel_num_weight_shards",
    "Q": "tensor_parallel_num_sequence_shards",
    "CP": "context_parallel_size",
}
CONTEXT_INSIDE = "tp-cp-gtp-dp-pp"  # the other rank order; `tp-gtp-cp-dp-pp` is the default


@dataclass(frozen=True)
class Layout:
    """``world`` ranks, the ``parallel`` section of a config, and the rows of a microbatch."""

    world: int
    parallel: Mapping[str, object]
    micro_batch_size: int
    name: str

    @property
    def tp(self) -> int:
        return self.resolved.tensor_model_parallel_size

    @property
    def resolved(self) -> GTPParallelLayout:
        return GTPParallelLayout.resolve(world_size=self.world, **self.parallel)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name


def layout(text: str, *, rows: int = 1) -> Layout:
    """From a text like ``"4 TP2 W4 Q4"``: ranks, then sizes; ``-SP`` turns sequence parallelism off,
    ``other-order`` takes the other rank order. ``rows`` are those of a microbatch."""
    world, *words = text.split()
    parallel: dict[str, object] = {}
    for word in words:
        if word == "-SP":
            parallel["sequence_parallel"] = False
        elif word == "other-order":
            parallel["rank_order"] = CONTEXT_INSIDE
        else:
            parallel[_KEYS[word.rstrip("0123456789")]] = int(word.lstrip("TPWQC"))
    return Layout(int(world), MappingProxyType(parallel), rows, f"{text.replace(' ', '_')}-mbs{rows}")


LAYOUTS = (  # lanes, microbatches
    layout("1", rows=2),  # 1, 4
    layout("2 W2"),  # 2, 4
    layout("4", rows=2),  # 4, 1: copies of everything
    layout("4 TP4", rows=4),  # 1, 2
    layout("4 TP2 W4", rows=2),  # 2, 2
    layout("4 W4"),  # 4, 2
    layout("4 W2", rows=2),  # 4, 1: two replicas
    layout("4 W4 Q4", rows=2),  # 1, 4
    layout("4 W4 Q2"),  # 2, 4
    layout("4 W2 Q2 CP2", rows=2),  # 1, 4
    layout("4 W2 CP2", rows=2),  # 2, 2
    layout("4 TP2 W4 Q4", rows=2),  # 1, 4
    layout("4 TP2 CP2", rows=4),  # 1, 2
    layout("4 TP2 -SP", rows=2),  # 2, 2
    layout("8 W4 Q2 CP2", rows=2),  # 2, 2
    layout("8 TP2 W4 CP2 other-order", rows=2),  # 2, 2
    layout("8 W8"),  # 8, 1
    layout("8 TP2 W8 Q4", rows=2),  # 2, 2
    layout("8 W2 CP2"),  # 4, 2: a plain reshape of the ranks gives other lanes
)
LONG_LAYOUTS = (
    *LAYOUTS,
    layout("2 TP2", rows=2),
    layout("2 CP2"),
    layout("2 W2 Q2", rows=2),
    layout("4 CP4"),
    layout("4 TP2 W4 -SP"),
    layout("4 W2 CP2 other-order"),
    layout("8", rows=1),
    layout("8 W2 Q2", rows=2),
    layout("8 W4", rows=1),
    layout("8 W8 Q8", rows=2),
    layout("8 W8 Q4 other-order", rows=1),
    layout("8 W4 Q4 CP2 other-order", rows=2),
    layout("8 W2 Q2 CP2 other-order", rows=1),
    layout("8 TP2 W2 CP2", rows=2),
    layout("8 TP2 W4 CP2 -SP", rows=4),
    layout("8 TP2 W4 Q4 CP2", rows=4),
    layout("8 TP2 W8 Q8", rows=4),
    layout("8 TP4 W8 Q8", rows=4),
    layout("8 TP4 CP2 other-order", rows=4),
)
