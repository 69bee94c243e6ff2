"""A layout as plain data: the object that ``rankloom layout --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankloom.layout.gtp import GTPParallelLayout
from rankloom.layout.topology import UNKNOWN, Topology


def layout_object(
    layout: GTPParallelLayout, *, sources: Mapping[str, str], topology: Topology
) -> dict[str, object]:
    """Sizes, sources, a row a rank, the groups of both views and warnings, as JSON-ready dicts and lists."""
    return {
        "sizes": layout.sizes,
        "rank_order": layout.rank_order,
        "sources": dict(sources),
        "ranks": rank_rows(layout, topology=topology),
        "groups": {
            "tp": layout.weights.groups("tp").tolist(),
            "pp": layout.weights.groups("pp").tolist(),
            "weights": {
                axes: layout.weights.groups(axes).tolist()
                for axes in ("gtp_remat", "tp_gtp_remat", "replica")
            },
            "tokens": {axes: layout.tokens.groups(axes).tolist() for axes in ("context", "batch", "lane")},
        },
        "warnings": topology.warnings(layout),
    }


def rank_rows(
    layout: GTPParallelLayout, *, topology: Topology, limit: int | None = None
) -> list[dict[str, int | None]]:
    """For each rank, or the first ``limit``: its coordinates, indices in both views and NVLink domain.

    The domain is None where it is not known.
    """
    ranks = np.arange(layout.ranks.start, layout.ranks.stop, dtype=np.int64)
    columns = {"rank": ranks} | layout.coord_arrays() | {"nvlink_domain": topology.domains}
    lists = [column[:limit].tolist() for column in columns.values()]
    return [
        dict(zip(columns, (None if value == UNKNOWN else value for value in row), strict=True))
        for row in zip(*lists, strict=True)
    ]
