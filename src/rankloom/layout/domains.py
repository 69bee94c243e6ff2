"""NVLink domains: consecutive ranks that reach each other over NVLink, and the groups that leave one."""

from __future__ import annotations

import numpy as np

from rankloom.errors import UserError
from rankloom.layout.axes import IntArray
from rankloom.layout.gtp import GTPParallelLayout


def domain_of(ranks: IntArray, nvlink_domain_size: int) -> IntArray:
    """The NVLink domain of each global rank, same shape: domain d holds ranks d*size to d*size + size - 1."""
    if nvlink_domain_size < 1:
        raise UserError(f"nvlink_domain_size must be at least 1, not {nvlink_domain_size}")
    return ranks // nvlink_domain_size


def crossing_groups(groups: IntArray, nvlink_domain_size: int) -> IntArray:
    """The row numbers of the groups that reach into more than one NVLink domain."""
    # Ranks ascend along a row, so the first and the last one bound its domains.
    domains = domain_of(groups, nvlink_domain_size)
    return np.flatnonzero(domains[:, 0] != domains[:, -1])


def domain_warnings(layout: GTPParallelLayout, nvlink_domain_size: int) -> list[str]:
    """What to know about weight groups that cross NVLink domains: at most one line, empty if none does.

    Tensor-parallel traffic and the gathering of weights happen inside every layer, so these groups want
    NVLink. Context and replica groups are expected to span domains.
    """
    for axes, words in (("tp", "tp"), ("tp_gtp_remat", "tp x gtp_remat")):
        groups = layout.weights.groups(axes)
        crossing = crossing_groups(groups, nvlink_domain_size)
        if crossing.size:
            return [_warning(words, groups, crossing, nvlink_domain_size=nvlink_domain_size)]
    return []


def _warning(words: str, groups: IntArray, crossing: IntArray, *, nvlink_domain_size: int) -> str:
    first = groups[crossing[0]]
    size = groups.shape[1]
    why = (
        f"{size} ranks are more than a domain of {nvlink_domain_size}"
        if size > nvlink_domain_size
        else f"groups of {size} ranks are not lined up with domains of {nvlink_domain_size}"
    )
    return (
        f"{crossing.size} of {len(groups)} {words} groups cross NVLink domains ({why}):"
        f" for example ranks {first[0]} to {first[-1]}"
    )
