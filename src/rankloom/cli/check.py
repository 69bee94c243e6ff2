"""``rankloom check``: everything that can be known about a job without starting it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rankloom.check.look import look_at
from rankloom.cli.job_options import JobOptions, JobSource, read_job, with_job_options
from rankloom.cli.overrides import parse_overrides


def _command(
    ctx: typer.Context,
    source: JobSource = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Print the resolved config instead, with the source of each value."),
    ] = False,
    *,
    options: JobOptions,
) -> None:
    """Find everything that can be wrong with a job before it starts. --key.sub VALUE sets any key.

    Exits with 0 when there is nothing to mend, 1 for warnings only, 2 for errors.
    """
    overrides = parse_overrides(ctx.args)
    examined = read_job(source, options, overrides=overrides)
    report = look_at(examined, model=options.model, driver=options.driver, calls=options.calls)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    elif resolved:
        from rankloom.check.resolved_yaml import resolved_yaml

        typer.echo(resolved_yaml(examined), nl=False)
        for finding in report.findings:
            typer.echo(f"{finding.severity}: {finding.text}", err=True)
    else:
        from rankloom.check.display import print_report
        from rankloom.explain.terminal_style import terminal

        print_report(report, console=terminal())
    raise typer.Exit(report.exit_code)


command = with_job_options(_command)
