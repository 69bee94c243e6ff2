"""A layout as plain data: the object that ``rankloom layout --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankloom.layout.domains import domain_of, domain_warnings
from rankloom.layout.gtp import GTPParallelLayout

DEFAULT_NVLINK_DOMAIN_SIZE = 8


def layout_object(
    layout: GTPParallelLayout, *, sources: Mapping[str, str], nvlink_domain_size: int | None = None
) -> dict[str, object]:
    """Sizes, sources, a row a rank, the groups of both views and warnings, as JSON-ready dicts and lists."""
    domain_size = DEFAULT_NVLINK_DOMAIN_SIZE if nvlink_domain_size is None else nvlink_domain_size
    return {
        "sizes": layout.sizes,
        "rank_order": layout.rank_order,
        "sources": dict(sources),
        "ranks": rank_rows(layout, nvlink_domain_size=domain_size),
        "groups": {
            "tp": layout.weights.groups("tp").tolist(),
            "pp": layout.weights.groups("pp").tolist(),
            "weights": {
                axes: layout.weights.groups(axes).tolist()
                for axes in ("gtp_remat", "tp_gtp_remat", "replica")
            },
            "tokens": {axes: layout.tokens.groups(axes).tolist() for axes in ("context", "batch", "lane")},
        },
        "warnings": domain_warnings(layout, domain_size),
    }


def rank_rows(
    layout: GTPParallelLayout, *, nvlink_domain_size: int, limit: int | None = None
) -> list[dict[str, int]]:
    """For each rank, or the first ``limit``: its coordinates, indices in both views and NVLink domain."""
    ranks = np.arange(layout.ranks.start, layout.ranks.stop, dtype=np.int64)
    columns = (
        {"rank": ranks} | layout.coord_arrays() | {"nvlink_domain": domain_of(ranks, nvlink_domain_size)}
    )
    lists = [column[:limit].tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
