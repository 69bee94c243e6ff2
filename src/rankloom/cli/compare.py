"""``rankloom compare``: two jobs on the same ranks, differences first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankloom.check.look import look_at
from rankloom.cli.job_options import JobOptions, read_job, tell_source, with_job_options
from rankloom.cli.overrides import parse_overrides
from rankloom.cli.page_file import write_page
from rankloom.errors import UserError, printable
from rankloom.plan.job import Job


def _command(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="A job: a config file, or with --from another's.")],
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The other one. Without it: A, with every --key.sub VALUE given."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PAGE", help="Write an HTML page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
    *,
    options: JobOptions,
) -> None:
    """Show two jobs side by side: which ranks change lane, shard or domain, and what that costs.

    Flags hold for both, --key.sub VALUE for B. --from may name two programs: rankloom,megatron.
    """
    given = list(ctx.args)
    if b is not None and b.startswith("--"):  # no second job, a setting comes next
        given, b = [b, *given], None
    overrides = parse_overrides(given)
    if b is None and not overrides:
        raise UserError("nothing to compare with: name a second job, or change the first: --key.sub VALUE")
    programs = _programs(options.program)
    one = _job("A", a, replace(options, program=programs[0]), overrides={})
    other = _job("B", b or a, replace(options, program=programs[1]), overrides=overrides)
    if b is None:
        changed = printable(" ".join(f"--{key} {value}" for key, value in overrides.items()))
        other = replace(other, title=f"{other.title} {changed}")
    _show(one, other, output, as_json=as_json)


def _show(one: Job, other: Job, output: Path | None, *, as_json: bool) -> None:
    from rankloom.explain.comparison import compare, comparison_object

    comparison = compare(one, other)
    if as_json:
        typer.echo(json.dumps(comparison_object(comparison)))
    elif output is not None:
        from rankloom.explain.compare_page import compare_page

        write_page(output, compare_page(one, other, comparison))
    else:
        from rankloom.explain.terminal_compare import print_comparison
        from rankloom.explain.terminal_style import terminal

        print_comparison(comparison, console=terminal())


def _programs(text: str) -> tuple[str, str]:
    """The programs of A and of B."""
    names = [name.strip() for name in text.split(",")]
    if len(names) > 2:
        raise UserError(f"--from {text}: there are two jobs, so name one program or two")
    return names[0], names[-1]


def _job(name: str, source: str, options: JobOptions, *, overrides: Mapping[str, object]) -> Job:
    """One of the two jobs. Raises UserError with every line saying which of them it is about."""
    try:
        examined = read_job(source, options, overrides=overrides)
        report = look_at(examined, model=options.model, files=False)
        job = report.require_job()
    except UserError as error:
        raise UserError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from error
    tell_source(report, name=f"{name}: ")
    for finding in report.findings:
        if finding.topic == "layout":  # a rank order that was assumed, a translation
            typer.echo(f"{name}: {finding.text}", err=True)
    return job


command = with_job_options(_command, without=("driver", "call"))
