"""The ``rankloom`` command. A command's module is imported when that command is used, and not before.

To add a command: a row in ``COMMANDS``, and a module with a function ``command`` whose parameters typer
understands. A command with ``overrides`` also takes ``ctx: typer.Context`` and finds the
``--key.sub VALUE`` arguments in ``ctx.args``, for ``rankloom.cli.overrides.parse_overrides``.
Errors are raised, not printed: ``rankloom.cli.ending`` ends the process with the right message and code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from rankloom import __version__
from rankloom.cli.ending import ending_well, report, signals_as_interrupt
from rankloom.cli.overrides import split_settings
from rankloom.cli.standard_streams import open_standard_streams

__all__ = ["COMMANDS", "Command", "build_app", "main"]


@dataclass(frozen=True)
class Command:
    """One command: where it lives, its line in ``--help``, and what must be installed for it."""

    module: str
    help: str
    extra: str = ""  # the extra that brings ``packages``
    packages: tuple[str, ...] = ()
    overrides: bool = False  # takes --key.sub VALUE for any key of the config


class _WithSettings(TyperCommand):
    """A command that finds ``--key.sub VALUE``, and what is no option of it, in ``ctx.args``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [name for parameter in self.get_params(ctx) for name in parameter.opts]
        own, settings = split_settings(args, options=options)
        super().parse_args(ctx, own)
        ctx.args = [*settings, *ctx.args]
        return list(ctx.args)


EXTRA_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

COMMANDS = {
    "train": Command(
        "rankloom.cli.train",
        "Train a model as a config file says, on local ranks or torchrun's.",
        extra="train",
        packages=("torch", "transformers", "tokenizers", "safetensors"),
        overrides=True,
    ),
    "checkpoint": Command(
        "rankloom.cli.checkpoint", "List, show and verify the checkpoints of a run, or remove old ones."
    ),
    "export": Command(
        "rankloom.cli.export",
        "Write a checkpoint's model as a Hugging Face folder.",
        extra="train",
        packages=("torch", "transformers", "tokenizers", "safetensors"),
    ),
    "import": Command(
        "rankloom.cli.import_",
        "Make a checkpoint of step 0 of a Hugging Face model folder.",
        extra="train",
        packages=("torch", "transformers", "tokenizers", "safetensors"),
    ),
    "check": Command(
        "rankloom.cli.check",
        "Find everything that can be wrong with a job before it starts.",
        overrides=True,
    ),
    "inspect": Command(
        "rankloom.cli.inspect",
        "Show the data as tokens: what is trained, and who gets which.",
        extra="train",
        packages=("transformers", "tokenizers"),
        overrides=True,
    ),
    "layout": Command(
        "rankloom.cli.layout",
        "Show the resolved sizes, the groups, and a row a rank.",
        overrides=True,
    ),
    "explain": Command(
        "rankloom.cli.explain",
        "Show who holds and gets what, here or as a page.",
        overrides=True,
    ),
    "compare": Command(
        "rankloom.cli.compare",
        "Show two jobs side by side, differences first.",
        overrides=True,
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 a failed run, 2 something the user must change, 130 interrupted."""
    open_standard_streams()
    with signals_as_interrupt():
        _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: list[str]) -> None:
    # Wherever it stands, so that it can be added to the end of the command that has just failed.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    used = _used_command(arguments)
    if "--help" in arguments and used in COMMANDS and COMMANDS[used].overrides:
        arguments = [used, "--help"]  # what stands after CONFIG is not read as options, but no value is this
    try:
        app = build_app(arguments, debug=debug)
    except (KeyboardInterrupt, ImportError) as error:
        raise SystemExit(report(error, name=used, debug=debug)) from None
    try:
        app(arguments, prog_name="rankloom")
    except OSError as error:  # from --help; what a command prints ends it well
        raise SystemExit(report(error, name=used, debug=debug)) from None


def build_app(arguments: Sequence[str], *, debug: bool = False) -> typer.Typer:
    """The typer app for these arguments: the command they use is imported, the others are only named."""
    # Plain help: the boxed one cuts off long option names.
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(_top_level)
    used = _used_command(arguments)
    for name, row in COMMANDS.items():
        function = _load(name, row, debug=debug) if name == used else _not_used
        app.command(
            name,
            cls=_WithSettings if row.overrides else None,
            help=row.help if name != used else None,
            context_settings=dict(EXTRA_ARGUMENTS) if row.overrides else {},
        )(function)
    return app


def _used_command(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _load(name: str, row: Command, *, debug: bool) -> Callable[..., object]:
    loaded: Callable[..., object] = import_module(row.module).command
    return ending_well(loaded, name=name, extra=row.extra, packages=row.packages, debug=debug)


def _not_used() -> None:
    """Stands for a command that this invocation only names."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankloom {__version__}")
        raise typer.Exit


def _top_level(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """One layout for weights and tokens: see it, check it, train with it."""
