"""``rankloom layout``: the resolved sizes, where they came from, the groups and a row a rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from rankloom.cli.layout_spellings import translate
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.layout.provenance import dotted
from rankloom.layout.topology import DEFAULT_NVLINK_DOMAIN_SIZE, Topology

SETTINGS = (
    "world_size",
    "nvlink_domain_size",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
    "pipeline_model_parallel_size",
    "rank_order",
)


@dataclass(frozen=True)
class Resolved:
    """A layout with the source of every setting (dotted keys) and the size of an NVLink domain."""

    layout: GTPParallelLayout
    sources: Mapping[str, str]
    nvlink_domain_size: int

    @property
    def topology(self) -> Topology:
        return Topology.regular(self.layout, nvlink_domain_size=self.nvlink_domain_size)


def command(
    config: Annotated[
        Path | None, typer.Argument(help="A config file; flags win over it.", show_default=False)
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    tensor_model_parallel_size: Annotated[int | None, typer.Option(help="TP. Default 1.")] = None,
    sequence_parallel: Annotated[
        str | None, typer.Option(metavar="true|false", help="SP. Default: true when TP > 1.")
    ] = None,
    tensor_parallel_num_weight_shards: Annotated[
        int | None, typer.Option(help="W = TP x GTP_remat. Default: TP.")
    ] = None,
    tensor_parallel_num_sequence_shards: Annotated[
        int | None, typer.Option(help="Q, counted including SP. Default: the SP degree.")
    ] = None,
    context_parallel_size: Annotated[int | None, typer.Option(help="Configured CP. Default 1.")] = None,
    pipeline_model_parallel_size: Annotated[int | None, typer.Option(help="PP. Default 1.")] = None,
    rank_order: Annotated[
        str | None, typer.Option(metavar="ORDER", help="tp-gtp-cp-dp-pp (default) or tp-cp-gtp-dp-pp.")
    ] = None,
    nvlink_domain_size: Annotated[
        int | None, typer.Option(help="GPUs in an NVLink domain. Default 8.")
    ] = None,
    gtp_remat_fold_cp: Annotated[
        bool, typer.Option("--gtp-remat-fold-cp", help="Older spelling: CP is the runtime degree.")
    ] = False,
    fold_whole_cp: Annotated[
        bool, typer.Option("--fold-whole-cp", help="Older spelling: all of CP joins the weight group.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
) -> None:
    """Show the resolved sizes, where they came from, the groups of both views, and a row a rank."""
    # Every flag is named after its setting, so the parameters given are the settings given.
    given = {name: value for name, value in locals().items() if name in SETTINGS and value is not None}
    if "sequence_parallel" in given:
        given["sequence_parallel"] = _truth("--sequence-parallel", str(sequence_parallel))
    note = ""
    if gtp_remat_fold_cp or fold_whole_cp:
        both = gtp_remat_fold_cp and fold_whole_cp
        given, note = translate(given, whole=fold_whole_cp, both=both, config=config)
    resolved = _from_flags(given, note=note) if config is None else _from_config(config, given)
    if as_json:
        typer.echo(json.dumps(_object(resolved, note=note)))
        return
    if note:
        typer.echo(note)
    from rankloom.explain.terminal_layout import print_layout

    print_layout(resolved.layout, sources=resolved.sources, topology=resolved.topology)


def _object(resolved: Resolved, *, note: str) -> dict[str, object]:
    printed = resolved.layout.to_json(sources=resolved.sources, topology=resolved.topology)
    return printed | {"warnings": [note] * bool(note) + cast(list[str], printed["warnings"])}


def _from_flags(given: Mapping[str, object], *, note: str) -> Resolved:
    if "world_size" not in given:
        raise UserError(
            "the number of ranks is missing; give --world-size, or a config file with cluster.world_size"
        )
    sources = {dotted(name): "cli" if name in given else "derived" for name in SETTINGS}
    keywords = {name: value for name, value in given.items() if name != "nvlink_domain_size"}
    try:
        layout = GTPParallelLayout.resolve(**keywords, sources=sources)  # type: ignore[arg-type]
    except UserError as error:
        raise UserError(f"{error}; {note}" if note else str(error)) from error
    domain_size = cast(int, given.get("nvlink_domain_size", DEFAULT_NVLINK_DOMAIN_SIZE))
    return Resolved(layout, sources, domain_size)


def _from_config(path: Path, given: Mapping[str, object]) -> Resolved:
    from rankloom.config import load_layout

    resolved = load_layout(path, cli={dotted(name): value for name, value in given.items()})
    sources = {dotted(name): resolved.sources[dotted(name)] for name in SETTINGS}
    return Resolved(resolved.layout, sources, resolved.cluster.nvlink_domain_size)


def _truth(flag: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(f"{flag} is true or false, not {text!r}")
    return text.lower() == "true"
