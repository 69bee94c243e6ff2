"""``rankloom inspect``: the data of a job as tokens, with what is trained and who gets them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankloom.cli.overrides import parse_overrides
from rankloom.config import ResolvedConfig, load
from rankloom.config.energon import ENERGON
from rankloom.errors import UserError

if TYPE_CHECKING:
    from rankloom.data.inspect import Look, Overview, RecordView, StepView


def command(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A config file (YAML).", show_default=False)],
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="A record by its place in the data, from 0.")
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(metavar="[FILE:]N", help="A record by its line (row of a table, key in a tar file)."),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="K", help="The rows of step K, from 1.")] = None,
    lane: Annotated[
        int | None, typer.Option(metavar="L", help="Of this lane, from 0. Default 0.", show_default=False)
    ] = None,
    validation: Annotated[
        bool,
        typer.Option("--validation", help="Of the validation data, and of the batches of an evaluation."),
    ] = False,
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
        look = _look(resolved, validation=validation)
        view = _view(look, sample=sample, line=line, step=step, lane=lane or 0)
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


def _look(resolved: ResolvedConfig, *, validation: bool) -> Look:
    """At the data that the options speak of."""
    if validation:
        from rankloom.data.inspect import ValidationLook
        from rankloom.train.evaluator import evaluation_rows

        return ValidationLook(resolved, lambda config, data, lane: evaluation_rows(config, data, lane=lane))
    if resolved.data.source == ENERGON:
        from rankloom.data.energon import require_energon

        require_energon()
        from rankloom.data.inspect.energon import EnergonLook  # loads Energon

        return EnergonLook(resolved)
    from rankloom.data.inspect import TrainingLook

    return TrainingLook(resolved)


def _view(
    look: Look, *, sample: int | None, line: str | None, step: int | None, lane: int
) -> Overview | RecordView | StepView:
    if sample is not None:
        return look.sample(sample)
    if line is not None:
        return look.at_line(line)
    return look.overview() if step is None else look.step(step, lane=lane)
