"""Where a layout's numbers come from: settings with their sources, sizes with their arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankloom.layout import GTPParallelLayout
from rankloom.layout.arithmetic import LAYOUT_SETTINGS
from rankloom.layout.provenance import dotted

__all__ = ["SettingRow", "SizeRow", "setting_rows", "size_rows"]


@dataclass(frozen=True)
class SettingRow:
    """A setting, the name its own program has for it, its value, and where the value came from."""

    key: str
    spelled: str
    value: str
    source: str


@dataclass(frozen=True)
class SizeRow:
    """A size that follows from the settings.

    ``formula`` is in names, ``numbers`` the same with values, ``brief`` both in short, for narrow tables.
    """

    name: str
    value: int
    formula: str
    numbers: str
    meaning: str
    brief: str


def setting_rows(
    layout: GTPParallelLayout, *, sources: Mapping[str, str], spelled: Mapping[str, str]
) -> tuple[SettingRow, ...]:
    """The settings of a layout; ``sources`` and ``spelled`` are by dotted key."""
    return tuple(
        SettingRow(
            key=name,
            spelled=spelled.get(dotted(name), dotted(name)),
            value=_plain(getattr(layout, name)),
            source=sources.get(dotted(name), ""),
        )
        for name in LAYOUT_SETTINGS
    )


def size_rows(layout: GTPParallelLayout) -> tuple[SizeRow, ...]:
    """The sizes that follow from the settings, in the order they are computed in."""
    W, Q = layout.tensor_parallel_num_weight_shards, layout.tensor_parallel_num_sequence_shards
    TP, PP = layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size
    CP, D = layout.context_parallel_size, layout.data_parallel_size
    G, S, B = (
        layout.gtp_remat_size,
        layout.gtp_remat_num_sequence_shards,
        layout.gtp_remat_num_batch_shards,
    )
    rows = (
        (
            "gtp_remat_size",
            "W / TP",
            f"{W} / {TP}",
            "ranks that gather a weight from each other",
            f"{W} / TP {TP}",
        ),
        (
            "gtp_remat_num_sequence_shards",
            "Q / SP degree",
            f"{Q} / {Q // S}",
            "the part of them that shares its rows",
            f"{Q} / SP degree {Q // S}",
        ),
        (
            "gtp_remat_num_batch_shards",
            "GTP_remat / sequence shards",
            f"{G} / {S}",
            "the part with rows of its own",
            f"{G} / {S}",
        ),
        (
            "data_parallel_size",
            "world / (TP x PP x CP x GTP_remat)",
            f"{layout.world_size} / ({TP} x {PP} x {CP} x {G})",
            "how often the whole pattern is repeated",
            f"{layout.world_size} / (TP {TP} x PP {PP} x CP {CP} x GTP_remat {G})",
        ),
        (
            "batch_parallel_size",
            "data parallel x batch shards",
            f"{D} x {B}",
            "the number of lanes",
            f"data_parallel {D} x {B}: number of lanes",
        ),
        (
            "runtime_context_parallel_size",
            "CP x sequence shards",
            f"{CP} x {S}",
            "ranks that a row is cut over; attention talks to them",
            f"CP {CP} x {S}: ranks attention talks to",
        ),
        (
            "num_weight_replicas",
            "data parallel x CP",
            f"{D} x {CP}",
            "copies of each weight shard",
            f"data_parallel {D} x CP {CP}: copies of a shard",
        ),
    )
    return tuple(SizeRow(name, int(getattr(layout, name)), *texts) for name, *texts in rows)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
