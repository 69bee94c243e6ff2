"""``rankloom inspect``: the data of a job as tokens, with what is trained and who gets them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankloom.cli.overrides import parse_overrides
from rankloom.config import ResolvedConfig, load
from rankloom.errors import UserError

if TYPE_CHECKING:
    from rankloom.data.inspect import Overview, RecordView, StepView


def command(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A config file (YAML).", show_default=False)],
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="A record of data.train by its place, from 0.")
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(metavar="[FILE:]N", help="A record by its line in the file (row of a table)."),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="K", help="The rows of step K, from 1.")] = None,
    lane: Annotated[
        int | None, typer.Option(metavar="L", help="Of this lane, from 0. Default 0.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
) -> None:
    """Show the tokens of a record, or the rows that a lane gets in a step; without either, an overview.

    --key.sub VALUE sets any key of the config and wins over the file.
    """
    _check_options(sample, line, step, lane)
    resolved = load(config, cli=parse_overrides(ctx.args))
    from rich.console import Console

    from rankloom.data.inspect import display
    from rankloom.explain.terminal_style import terminal

    with Console(stderr=True).status("prepare the data"):
        view = _view(resolved, sample=sample, line=line, step=step, lane=lane)
    if as_json:
        typer.echo(json.dumps(asdict(view)))
    else:
        display.print_view(view, config=str(config), console=terminal())


def _check_options(sample: int | None, line: str | None, step: int | None, lane: int | None) -> None:
    given = {"--sample": sample, "--line": line, "--step": step}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} show different things; give one of them")
    if lane is not None and step is None:
        raise UserError(f"--lane {lane} needs a step: --step K --lane {lane}")


def _view(
    resolved: ResolvedConfig, *, sample: int | None, line: str | None, step: int | None, lane: int | None
) -> Overview | RecordView | StepView:
    from rankloom.data.inspect import Overview, Records, step_view
    from rankloom.data.prepare import prepare

    _refuse_other_data(resolved)
    if sample is not None:
        return Records(resolved).sample(sample)
    if line is not None:
        return Records(resolved).at_line(line)
    data = prepare(resolved)
    # Where nothing ends the run, its first epoch is looked at.
    num_steps = resolved.train.max_steps or data.stream.num_steps(resolved.train.epochs or 1)
    if step is None:
        num_lanes = resolved.layout.batch_parallel_size
        num_samples = len(Records(resolved))
        return Overview.of(data, num_samples=num_samples, num_steps=num_steps, num_lanes=num_lanes)
    return step_view(
        data,
        resolved.layout,
        micro_batch_size=resolved.train.micro_batch_size,
        balance=resolved.data.balance,
        num_steps=num_steps,
        step=step,
        lane=lane or 0,
    )


def _refuse_other_data(resolved: ResolvedConfig) -> None:
    source = getattr(resolved.data, "source", "chats")  # other kinds of data may not be installed
    if source != "chats":
        raise UserError(
            f"data.source is {source}: inspect shows chats (data.train), and not {source} data yet"
        )
