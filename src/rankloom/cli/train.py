"""``rankloom train``: starts local ranks, drives those of a Ray cluster, or is one that torchrun started."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rankloom.cli.ending import require_packages
from rankloom.cli.overrides import parse_overrides
from rankloom.config import ResolvedConfig, load
from rankloom.errors import UserError
from rankloom.train.display import ConsoleReporter
from rankloom.train.local import end_forkserver, run_local
from rankloom.train.preflight import check_before_start
from rankloom.train.reporting import SilentReporter
from rankloom.train.torchrun import (
    TorchrunEnvironment,
    check_environment,
    leave_signals_to_torchrun,
    leave_to_another,
    run_torchrun,
)


def command(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A config file (YAML).", show_default=False)],
    save_before: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM", help="Save and end before this time of day; as --checkpoint.save_before."
        ),
    ] = None,
) -> None:
    """Train the model of a config file. --key.sub VALUE sets any key of it and wins over the file."""
    since = time.monotonic()
    environment = TorchrunEnvironment.read(os.environ)
    overrides = ctx.args if save_before is None else [*ctx.args, "--checkpoint.save_before", save_before]
    if environment is None:
        resolved = _checked(config, overrides, environment)
        with ConsoleReporter(since=since) as reporter:
            if resolved.cluster.engine == "ray":
                _run_ray(resolved, reporter)
            else:
                _run_local(resolved, reporter)
        return
    leave_signals_to_torchrun()
    try:
        resolved = _checked(config, overrides, environment)
    except UserError as error:
        leave_to_another(error, environment)
        raise
    with ConsoleReporter(since=since) if environment.rank == 0 else nullcontext(SilentReporter()) as reporter:
        run_torchrun(resolved, environment=environment, reporter=reporter)


def _checked(
    config: Path, overrides: Sequence[str], environment: TorchrunEnvironment | None
) -> ResolvedConfig:
    defaults = environment.defaults() if environment else None
    resolved = load(config, cli=parse_overrides(overrides), defaults=defaults)
    check_environment(resolved, environment)
    if resolved.cluster.engine == "ray":
        require_packages(("ray",), extra="ray")
    check_before_start(resolved)
    return resolved


def _run_local(resolved: ResolvedConfig, reporter: ConsoleReporter) -> None:
    try:
        run_local(resolved, reporter=reporter)
    finally:
        end_forkserver()


def _run_ray(resolved: ResolvedConfig, reporter: ConsoleReporter) -> None:
    from rankloom.driver.engine import run_ray  # loads Ray

    run_ray(resolved, reporter=reporter, address=resolved.cluster.address or os.environ.get("RAY_ADDRESS"))
