"""Who holds which weights and who trains on which tokens: one set of ranks, two views. Numpy only."""

from __future__ import annotations

from rankloom.layout.axes import DEFAULT_RANK_ORDER, RANK_ORDERS
from rankloom.layout.calls import Call, Reach, reach
from rankloom.layout.driver import Driver, DriverOutcome, compare_driver
from rankloom.layout.driver_mistakes import PLAIN_RESHAPE
from rankloom.layout.driver_words import DRIVER_AXES
from rankloom.layout.gtp import Coords, GTPParallelLayout
from rankloom.layout.node_choice import choose_nodes
from rankloom.layout.spellings import Translation, from_fold_whole_cp, from_gtp_remat_fold_cp
from rankloom.layout.topology import Topology
from rankloom.layout.views import View

__all__ = [
    "DEFAULT_RANK_ORDER",
    "DRIVER_AXES",
    "PLAIN_RESHAPE",
    "RANK_ORDERS",
    "Call",
    "Coords",
    "Driver",
    "DriverOutcome",
    "GTPParallelLayout",
    "Reach",
    "Topology",
    "Translation",
    "View",
    "choose_nodes",
    "compare_driver",
    "from_fold_whole_cp",
    "from_gtp_remat_fold_cp",
    "reach",
]
