"""Who holds which weights and who trains on which tokens: one set of ranks, two views. Numpy only."""

from __future__ import annotations

from rankloom.layout.axes import DEFAULT_RANK_ORDER, RANK_ORDERS
from rankloom.layout.driver import DRIVER_AXES, ReshapeOutcome, reshape_outcome
from rankloom.layout.gtp import Coords, GTPParallelLayout
from rankloom.layout.spellings import Translation, from_fold_whole_cp, from_gtp_remat_fold_cp
from rankloom.layout.topology import Topology
from rankloom.layout.views import View

__all__ = [
    "DEFAULT_RANK_ORDER",
    "DRIVER_AXES",
    "RANK_ORDERS",
    "Coords",
    "GTPParallelLayout",
    "ReshapeOutcome",
    "Topology",
    "Translation",
    "View",
    "from_fold_whole_cp",
    "from_gtp_remat_fold_cp",
    "reshape_outcome",
]
