"""One pass over a job: every part is looked at, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankloom.check.data import check_data
from rankloom.check.drivers import look_at_driver
from rankloom.check.model import check_model, read_model_config
from rankloom.check.outputs import check_outputs, check_room
from rankloom.check.placement import look_at_placement, topology_of
from rankloom.check.report import Report, worst_first
from rankloom.config.energon import ENERGON
from rankloom.config.examine import OWN_PROGRAM, Examined
from rankloom.config.findings import Finding
from rankloom.config.notes import notes_on
from rankloom.config.refusals import not_available, without_end, without_validation
from rankloom.config.schema import TrainSection
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelPlan, ModelSpec, StepShape, sequence_multiple
from rankloom.plan.job import Job

__all__ = ["look_at"]

LENGTH = "data.max_seq_length"
VALIDATION = ("data", "data.validation", "data.validation_split")
END = ("train.max_steps", "train.epochs")
NO_MODEL = "model: none is named (heads, widths and bytes; --model FOLDER names one)"
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


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
    examined = look.examined
    drivers = look_at_driver(layout, spelling=driver, calls=calls)
    look.findings += drivers.findings
    try:
        topology = topology_of(examined, layout)
    except UserError as error:
        keys = ("cluster.nvlink_domains",)
        look.findings.append(Finding("error", "placement", str(error), keys, examined.where(*keys)))
        return Report(
            examined=examined,
            findings=worst_first(look.findings),
            not_looked_at=tuple(look.not_looked_at),
            outcome=drivers.outcome,
            reaches=drivers.reaches,
        )
    plan = _plan(spec, layout)
    step = _step(look, layout) if plan is not None else None
    job = Job(
        title=Path(examined.origin).name,
        program=examined.program,
        origin=examined.origin,
        layout=layout,
        topology=topology,
        sources=examined.sources,
        spelled=examined.overlay.spelled,
        batch=examined.batch,
        sequence_length=_sequence_length(examined, layout),
        plan=plan,
        step=step,
        driver=drivers.driver,
        calls=drivers.calls,
        not_looked_at=tuple(look.not_looked_at),
    )
    placement = look_at_placement(job, examined)
    look.findings += placement.findings
    return Report(
        examined=examined,
        findings=worst_first(look.findings),
        not_looked_at=job.not_looked_at,
        job=job,
        crossings=placement.crossings,
        outcome=drivers.outcome,
        reaches=drivers.reaches,
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


def _step(look: _Look, layout: GTPParallelLayout) -> StepShape | None:
    examined, batch = look.examined, look.examined.batch
    length = _sequence_length(examined, layout)
    foreign = examined.foreign
    dtype = str(examined.value("model.dtype"))
    element = ELEMENT_BYTES.get(dtype) if foreign is None else foreign.element_size
    needed = {"a global batch": batch, "the length of a row": length, "a precision": element}
    missing = [what for what, value in needed.items() if value is None]
    if layout.pipeline_model_parallel_size > 1:
        look.not_looked_at.append("bytes of a step: they are not counted with pipeline stages")
    elif missing:
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
