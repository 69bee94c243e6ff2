"""``rankloom explain``: who holds which weights and gets which tokens, on the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankloom.check.look import look_at
from rankloom.cli.job_options import JobOptions, JobSource, read_job, tell_source, with_job_options
from rankloom.cli.overrides import parse_overrides
from rankloom.cli.page_file import write_page


def _command(
    ctx: typer.Context,
    source: JobSource = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PAGE", help="Write an HTML page.")
    ] = None,
    *,
    options: JobOptions,
) -> None:
    """Show who holds which weights, who gets which tokens, and who talks to whom.

    --key.sub VALUE sets any key.
    """
    examined = read_job(source, options, overrides=parse_overrides(ctx.args))
    report = look_at(examined, model=options.model, driver=options.driver, calls=options.calls, files=False)
    job = report.require_job()
    tell_source(report)
    if output is None:
        from rankloom.check.display import print_findings
        from rankloom.explain.terminal import print_job
        from rankloom.explain.terminal_style import terminal

        console = terminal()
        print_job(job, console=console, crossings=report.crossings)
        if report.findings:
            console.print("Findings", style="bold")
            print_findings(report, console=console)
        return
    from rankloom.explain.page import Message, page

    messages = [Message(finding.severity, finding.text) for finding in report.findings]
    write_page(output, page(job, messages=messages, crossing=report.crossings))


command = with_job_options(_command)
