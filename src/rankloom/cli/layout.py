"""``rankloom layout``: the resolved sizes, where they came from, the groups and a row a rank."""

from __future__ import annotations

import json
from typing import Annotated, cast

import typer

from rankloom.check.look import look_at
from rankloom.cli.job_options import JobOptions, JobSource, read_job, tell_source, with_job_options
from rankloom.cli.overrides import parse_overrides
from rankloom.config.findings import Finding
from rankloom.layout.arithmetic import LAYOUT_SETTINGS
from rankloom.layout.provenance import dotted

SHOWN = (*LAYOUT_SETTINGS, "nvlink_domain_size")


def _command(
    ctx: typer.Context,
    source: JobSource = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
    *,
    options: JobOptions,
) -> None:
    """Show the resolved sizes, where they came from, the groups of both views, and a row a rank.

    --key.sub VALUE sets any key.
    """
    report = look_at(read_job(source, options, overrides=parse_overrides(ctx.args)), files=False)
    job = report.require_job()
    tell_source(report)
    notes = [finding.message for finding in report.findings if _belongs(finding)]
    sources = {dotted(name): job.sources[dotted(name)] for name in SHOWN}
    if as_json:
        printed = job.layout.to_json(sources=sources, topology=job.topology)
        typer.echo(json.dumps(printed | {"warnings": notes + cast(list[str], printed["warnings"])}))
        return
    for note in notes:
        typer.echo(note)
    from rankloom.explain.terminal_layout import print_layout

    print_layout(job.layout, sources=job.sources, topology=job.topology)


def _belongs(finding: Finding) -> bool:
    """Whether the layout alone cannot be read without it: a translation, a rank order that was assumed."""
    return finding.topic == "layout"


command = with_job_options(_command, without=("model", "driver", "call"))
