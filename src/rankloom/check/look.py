"""One pass over a job: every part is looked at, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankloom.check.data import check_data
from rankloom.check.drivers import Drivers, look_at_driver
from rankloom.check.model import check_model, read_model_config
from rankloom.check.outputs import check_outputs, check_room
from rankloom.check.placement import look_at_placement, topology_of
from rankloom.check.report import Report, worst_first
from rankloom.config.batch import BatchArithmetic
from rankloom.config.energon import ENERGON
from rankloom.config.examine import OWN_PROGRAM, Examined
from rankloom.config.findings import Finding
from rankloom.config.notes import notes_on
from rankloom.config.refusals import not_available, without_end, without_validation
from rankloom.config.schema import TrainSection
from rankloom.config.values import ELEMENT_BYTES
from rankloom.errors import UserError, printable
from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelPlan, ModelSpec, StepShape, sequence_multiple
from rankloom.plan.job import Job

__all__ = ["look_at"]

LENGTH = "data.max_seq_length"
GLOBAL, MICRO = "train.global_batch_size", "train.micro_batch_size"
VALIDATION = ("data", "data.validation", "data.validation_split")
END = ("train.max_steps", "train.epochs")
NO_MODEL = "model: none is named (heads, widths and bytes; --model FOLDER names one)"


@dataclass
class _Look:
    """What was found so far."""

    examined: Examined
    findings: list[Finding] = field(default_factory=list)
    not_looked_at: list[str] = field(default_factory=list)


def look_at(
    examined: Examined,
    *,
    model: Path | None = None,
    driver: str | None = None,
    calls: Sequence[str] = (),
    files: bool = True,
) -> Report:
    """Everything that can be known about a job, worst first. Starts nothing and changes no file.

    Args:
        examined: its settings, of our own config or of another program.
        model: a Hugging Face folder or ``config.json``, for a job that does not name its model.
        driver: a driver's idea of the ranks, as ``Driver.parse`` reads it.
        calls: its calls, as ``Call.parse`` reads them.
        files: look at the data file, the output folders and the disk too.
    """
    look = _Look(examined, list(examined.findings), list(examined.missing))
    spec = _look_at_model(look, model)
    if examined.program == OWN_PROGRAM:
        _look_at_training(look, spec, files=files)
    if examined.layout is None:
        if not any(line.startswith("layout:") for line in examined.missing):
            look.not_looked_at.append("lanes, batch, placement: they need the layout, which is wrong above")
        return Report(examined, worst_first(look.findings), tuple(look.not_looked_at))
    return _with_layout(look, examined.layout, spec, driver=driver, calls=calls)


def _look_at_model(look: _Look, given: Path | None) -> ModelSpec | None:
    """The model's parameters, from whichever place names it first; None where none does, or it is wrong."""
    examined, file = look.examined, ""
    path = given or examined.value("model.path")
    foreign = examined.foreign.model if examined.foreign else None
    config = examined.value("model.config") or foreign
    if path is not None:
        what = "--model" if given else "model.path"
        try:
            config = read_model_config(Path(str(path)), what=what, or_file=given is not None)
        except UserError as error:
            keys = () if given else ("model.path",)
            look.findings.append(Finding("error", "model", str(error), keys, examined.where(*keys)))
            return None
        file = str(path) if Path(str(path)).is_file() else f"{path}/config.json"
    if not isinstance(config, Mapping):
        if examined.refused.isdisjoint(("model", "model.path", "model.config")):
            look.not_looked_at.append(NO_MODEL)
        return None
    if foreign is not None and config is foreign:
        file = examined.origin
    spec, findings = check_model(examined, config, file=file)
    look.findings += findings
    if spec is not None and config.get("vocab_size") is None and not file:
        look.not_looked_at.append(
            "vocabulary: its size is the tokenizer's, which is not known yet; "
            f"bytes count {spec.vocab_size} rows"
        )
    return spec


def _look_at_training(look: _Look, spec: ModelSpec | None, *, files: bool) -> None:
    """What only a run of our own has: data, outputs, what training cannot do."""
    examined = look.examined
    look.findings += not_available(examined.value, where=examined.where)
    look.findings += notes_on(examined.value, examined.sources)
    if examined.get(TrainSection) is not None and examined.refused.isdisjoint(END):
        look.findings += without_end(examined.value, origin=examined.origin)
    if examined.refused.isdisjoint(VALIDATION):
        look.findings += without_validation(examined.value, where=examined.where)
    named = any(key.startswith("data.") for key in examined.overlay.values)
    unnamed = (
        examined.value("data.train") is None
        and examined.value("data.source") != ENERGON
        and examined.refused.isdisjoint(("data", "data.train"))
    )
    if unnamed and (named or examined.get(TrainSection) is not None):
        look.not_looked_at.append("data: no file is named (data.train)")
    if not files:
        return
    look.findings += check_data(examined)
    if examined.get(TrainSection) is not None:
        look.findings += check_outputs(examined)
        look.findings += check_room(examined, spec) if spec is not None else ()


def _with_layout(
    look: _Look,
    layout: GTPParallelLayout,
    spec: ModelSpec | None,
    *,
    driver: str | None,
    calls: Sequence[str],
) -> Report:
    drivers = look_at_driver(layout, spelling=driver, calls=calls)
    look.findings += drivers.findings
    job = _job(look, layout, spec, drivers)
    placement = look_at_placement(job, look.examined) if job is not None else None
    if placement is not None:
        look.findings += placement.findings
        look.not_looked_at += placement.not_looked_at
    return Report(
        examined=look.examined,
        findings=worst_first(look.findings),
        not_looked_at=tuple(look.not_looked_at),
        job=job and replace(job, not_looked_at=tuple(look.not_looked_at)),
        crossings=placement.crossings if placement is not None else (),
        outcome=drivers.outcome,
        reaches=drivers.reaches,
    )


def _job(look: _Look, layout: GTPParallelLayout, spec: ModelSpec | None, drivers: Drivers) -> Job | None:
    """The job; None where the domains of its ranks are listed wrongly."""
    examined = look.examined
    try:
        topology = topology_of(examined, layout)
    except UserError as error:
        keys = ("cluster.nvlink_domains",)
        look.findings.append(Finding("error", "placement", str(error), keys, examined.where(*keys)))
        return None
    foreign = examined.foreign
    equal = foreign is None or foreign.equal_stages or layout.pipeline_model_parallel_size == 1
    if spec is not None and not equal:
        look.not_looked_at.append(
            "parameters and bytes: the pipeline stages are no equal stretches of layers"
        )
    plan = _plan(spec, layout) if equal else None
    return Job(
        title=printable(Path(examined.origin).name),
        program=examined.program,
        origin=examined.origin,
        layout=layout,
        topology=topology,
        sources=examined.sources,
        spelled=examined.overlay.spelled,
        batch=examined.batch,
        sequence_length=_sequence_length(examined, layout),
        plan=plan,
        step=_step(look, plan) if plan is not None else None,
        driver=drivers.driver,
        calls=drivers.calls,
    )


def _plan(spec: ModelSpec | None, layout: GTPParallelLayout) -> ModelPlan | None:
    try:
        return ModelPlan.build(spec, layout) if spec is not None else None
    except UserError:
        return None  # a finding about the model says why


def _sequence_length(examined: Examined, layout: GTPParallelLayout) -> int | None:
    """Tokens of a row; None where a job of another program does not say, or the layout cannot cut it."""
    length, foreign = examined.value(LENGTH), examined.foreign
    if not isinstance(length, int) or (foreign is not None and LENGTH not in examined.overlay.values):
        return None
    multiple = sequence_multiple(layout)
    if foreign is not None and foreign.sequence_multiple is not None:  # rows are padded
        length = -(-length // foreign.sequence_multiple) * foreign.sequence_multiple
    return length if length % multiple == 0 else None


def _step(look: _Look, plan: ModelPlan) -> StepShape | None:
    examined, batch = look.examined, look.examined.batch
    length = _sequence_length(examined, plan.layout)
    foreign = examined.foreign
    dtype = str(examined.value("model.dtype"))
    element = ELEMENT_BYTES.get(dtype) if foreign is None else foreign.element_size
    if missing := [*_unusable(examined, batch, length), *["a precision"] * (element is None)]:
        look.not_looked_at.append(f"bytes of a step: they are not counted without {' and '.join(missing)}")
    if batch is None or length is None or element is None:
        return None
    return StepShape(
        micro_batch_size=batch.micro_batch_size,
        num_microbatches=batch.num_microbatches,
        sequence_length=length,
        element_size=element,
        gradient_checkpointing=examined.value("train.gradient_checkpointing") is True,
    )


def _unusable(examined: Examined, batch: BatchArithmetic | None, length: int | None) -> Iterator[str]:
    """The batch and the length of a row where there is none: not said, or wrong, as a finding tells."""
    wrong = {key for finding in examined.findings if finding.severity == "error" for key in finding.keys}
    if batch is None:
        yield "a global batch that fits" if wrong & {GLOBAL, MICRO} else "a global batch"
    if length is None:
        yield "a row length that fits" if LENGTH in wrong else "the length of a row"
