"""A report on the terminal: what was read, the findings worst first, what was not looked at."""

from __future__ import annotations

from textwrap import wrap

from rich.console import Console
from rich.text import Text

from rankloom.check.report import Report
from rankloom.config.findings import Finding
from rankloom.errors import printable
from rankloom.explain.headline import headline
from rankloom.layout import DriverOutcome

__all__ = ["print_findings", "print_report", "source_lines"]

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
INDENT = 9
MAX_BLOCKS = 4
MAX_IGNORED = 24


def print_report(report: Report, *, console: Console) -> None:
    """Print everything that was found; the last line counts it."""
    _print_source(report, console)
    print_findings(report, console=console)
    if report.outcome is not None and not report.outcome.agrees:
        _print_driver(report.outcome, console)
    if report.not_looked_at:
        console.print(*[Text()] * bool(report.findings), Text("Not looked at", style="bold"), sep="\n")
        for line in report.not_looked_at:
            _print_wrapped(line, console)
    if report.findings or report.not_looked_at:
        console.print()
    console.print(Text(_verdict(report), style="bold"), soft_wrap=True)


def print_findings(report: Report, *, console: Console) -> None:
    """Print the findings alone, worst first."""
    for finding in report.findings:
        console.print(_finding(finding, width=console.width), soft_wrap=True)


def _print_source(report: Report, console: Console) -> None:
    heading, *lines = source_lines(report) or [""]
    if heading:
        console.print(Text(heading, style="bold"))
        for line, style in zip(lines, ("", "dim"), strict=False):
            _print_wrapped(line, console, style=style)
        console.print()
    if report.job is not None:
        _print_wrapped(headline(report.job.layout), console, indent=0)
        console.print()


def source_lines(report: Report) -> list[str]:
    """Of another program's job: whose and where it is, what was read, what was passed over if anything."""
    foreign = report.examined.foreign
    if foreign is None:
        return []
    lines = [f"Read from {foreign.origin} ({foreign.program})", ", ".join(foreign.read)]
    if foreign.ignored:
        more = len(foreign.ignored) - MAX_IGNORED
        shown = ", ".join(foreign.ignored[:MAX_IGNORED])
        lines.append(f"ignored: {shown}{f' and {more} more' if more > 0 else ''}")
    return [printable(line) for line in lines]


def _print_wrapped(text: str, console: Console, *, indent: int = 2, style: str = "") -> None:
    for line in wrap(printable(text), console.width - indent, break_on_hyphens=False, break_long_words=False):
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def _print_driver(outcome: DriverOutcome, console: Console) -> None:
    """Rank by rank where driver and trainer differ, and the axes that are right."""
    rows = {"rank": outcome.wrong_ranks, "lane": outcome.right_lanes, "driver": outcome.driver_lanes}
    width = max(len(str(value)) for values in rows.values() for value in values) + 1
    number = (console.width - INDENT - 2) // width
    shown = min(len(outcome.wrong_ranks), number * MAX_BLOCKS)
    console.print()
    console.print(Text("Ranks in the wrong lane", style="bold"))
    for start in range(0, shown, number):
        for name, values in rows.items():
            cells = "".join(f"{value:>{width}}" for value in values[start : min(start + number, shown)])
            console.print(Text(f"  {name:<{INDENT - 2}}{cells}"), soft_wrap=True)
    if shown < len(outcome.wrong_ranks):
        console.print(Text(f"  and {len(outcome.wrong_ranks) - shown} more; --json lists them", style="dim"))
    console.print(Text("The right axes", style="bold"))
    for line in outcome.right_axes.splitlines():
        console.print(Text(f"  {line}"), soft_wrap=True)


def _finding(finding: Finding, *, width: int) -> Text:
    """The severity, and beside it the message with where it comes from below."""
    lines = wrap(finding.message, width - INDENT, break_on_hyphens=False, break_long_words=False)
    text = Text(f"{finding.severity:<{INDENT}}", style=STYLES[finding.severity])
    text.append(f"\n{' ' * INDENT}".join(lines), style="not bold default")
    if finding.where:
        text.append(f"\n{' ' * INDENT}{finding.where}", style="not bold dim default")
    return text


def _verdict(report: Report) -> str:
    counts = [f"{n} {word}{'s' * (n != 1)}" for word, n in report.counts.items() if n]
    return printable(f"{report.examined.origin}: {', '.join(counts) or 'nothing to mend'}")
