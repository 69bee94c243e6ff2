"""What `check`, `layout`, `explain` and `compare` have in common: which job is meant, and the flags for it.

A command is decorated with ``with_job_options`` and gets one ``options: JobOptions``; the options themselves
are the parameters of ``_options``, each named after the setting it sets.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from rankloom.check.report import Report
from rankloom.cli.layout_spellings import translate
from rankloom.config.examine import Examined, examine
from rankloom.config.overlay import COMMAND_LINE
from rankloom.errors import UserError
from rankloom.layout.arithmetic import LAYOUT_SETTINGS
from rankloom.layout.provenance import CLUSTER_SETTINGS, dotted

__all__ = ["PROGRAMS", "SETTINGS", "JobOptions", "JobSource", "read_job", "tell_source", "with_job_options"]

PROGRAMS = ("rankloom", "megatron", "nemo-rl")
SETTINGS = tuple(dict.fromkeys((*LAYOUT_SETTINGS, *CLUSTER_SETTINGS)))


# The argument that names the job.
JobSource = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A config file; with --from a file of that program, - for standard input, or a shell line.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class JobOptions:
    """The flags of one invocation. ``settings``: those given, by dotted key."""

    program: str = "rankloom"
    settings: Mapping[str, object] = field(default_factory=dict)
    gtp_remat_fold_cp: bool = False
    fold_whole_cp: bool = False
    model: Path | None = None
    driver: str | None = None
    calls: tuple[str, ...] = ()


def _options(
    program: Annotated[
        str, typer.Option("--from", metavar="PROGRAM", help="Whose job it is: rankloom, megatron or nemo-rl.")
    ] = "rankloom",
    world_size: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a node.")] = None,
    nvlink_domain_size: Annotated[
        int | None, typer.Option(help="GPUs in an NVLink domain. Default: a node, or 8.")
    ] = None,
    nvlink_domains: Annotated[
        str | None, typer.Option(metavar="RANKS", help='Ranks of each domain: "0-7,16-23;8-15".')
    ] = None,
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
    gtp_remat_fold_cp: Annotated[
        bool, typer.Option("--gtp-remat-fold-cp", help="Older spelling: CP is the runtime degree.")
    ] = False,
    fold_whole_cp: Annotated[
        bool, typer.Option("--fold-whole-cp", help="Older spelling: all of CP joins the weight group.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model: a Hugging Face folder or config.json.")
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="AXES", help='A driver\'s idea of the ranks: "pp,-1,cp,tp", or axes with sizes.'
        ),
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL",
            help='A call of the driver: "NAME: shard=AXES replicate=AXES leader_only=AXES".',
        ),
    ] = None,
) -> None: ...


def with_job_options(function: Callable[..., None], *, without: tuple[str, ...] = ()) -> Callable[..., None]:
    """The command with the options above in its signature; it gets them as ``options``.

    ``without``: options that this command does not have.
    """
    own = inspect.signature(function, eval_str=True).parameters
    every = inspect.signature(_options, eval_str=True).parameters
    shared = {name: parameter for name, parameter in every.items() if name not in without}
    parameters = [*(parameter for name, parameter in own.items() if name != "options"), *shared.values()]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        options = _read({name: given.pop(name) for name in shared})
        function(**given, options=options)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _read(given: Mapping[str, Any]) -> JobOptions:
    program = given["program"]
    for name in program.split(","):
        if name.strip() not in PROGRAMS:
            raise UserError(f"--from {name.strip()!r} is not known; it is one of {', '.join(PROGRAMS)}")
    settings = {dotted(name): given[name] for name in SETTINGS if given.get(name) is not None}
    truth = dotted("sequence_parallel")
    if truth in settings:
        settings[truth] = _truth("--sequence-parallel", settings[truth])
    return JobOptions(
        program=program,
        settings=settings,
        gtp_remat_fold_cp=given["gtp_remat_fold_cp"],
        fold_whole_cp=given["fold_whole_cp"],
        model=given.get("model"),
        driver=given.get("driver"),
        calls=tuple(given.get("call") or ()),
    )


def _truth(flag: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(f"{flag} is true or false, not {text!r}")
    return text.lower() == "true"


def read_job(
    source: str | None, options: JobOptions, *, overrides: Mapping[str, object] | None = None
) -> Examined:
    """The settings of the job that ``source`` and the flags mean; ``overrides`` (dotted keys) win over all.

    Raises UserError only where nothing can be read at all: a missing file, a file of another kind.
    """
    if source is not None and not source.strip():
        raise UserError("the name of the job is empty; name a file")
    if options.program != "rankloom":
        return _foreign(source, options, overrides or {})
    if source == "-":
        raise UserError("- is standard input, which is read with --from alone; name a config file")
    if source is None and not options.settings and not overrides:
        raise UserError(
            "the number of ranks is missing; give --world-size, or a config file with cluster.world_size"
        )
    cli, note = {**options.settings, **(overrides or {})}, None
    if options.gtp_remat_fold_cp or options.fold_whole_cp:
        both = options.gtp_remat_fold_cp and options.fold_whole_cp
        cli, note = translate(cli, whole=options.fold_whole_cp, both=both, source=source)
    from rankloom.config.resolved import read_mapping

    mapping = read_mapping(source) if source is not None else {}
    origin = source if source is not None else COMMAND_LINE
    flags = set(cli) - set(overrides or {})
    return examine(mapping, cli=cli, origin=origin, flags=flags, notes=(note,) if note else ())


def _foreign(source: str | None, options: JobOptions, overrides: Mapping[str, object]) -> Examined:
    from rankloom.config.examine_foreign import examine_foreign
    from rankloom.config.foreign import read_foreign

    if source is None:
        raise UserError(f"--from {options.program} needs the job: a file, or - for standard input")
    if options.gtp_remat_fold_cp or options.fold_whole_cp:
        raise UserError(
            "an older spelling belongs into the job's own arguments with --from; leave the flag out"
        )
    cli = {**options.settings, **overrides}
    rank_order = cli.pop(dotted("rank_order"), None)
    foreign = read_foreign(
        options.program, source, rank_order=None if rank_order is None else str(rank_order)
    )
    return examine_foreign(foreign, cli=cli, flags=tuple(options.settings))


def tell_source(report: Report, *, name: str = "") -> None:
    """Say on stderr what was read of another program's job, and what was passed over; ``name``: of two."""
    from rankloom.check.display import source_lines

    for line in source_lines(report):
        typer.echo(f"{name}{line}", err=True)
