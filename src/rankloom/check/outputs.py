"""What a run would write: whether it can, what it must not write over, and whether the disk has room.

Nothing is made or changed here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.config.schema import DataSection
from rankloom.config.values import ELEMENT_BYTES
from rankloom.errors import UserError
from rankloom.plan import ModelSpec
from rankloom.plan.amounts import bytes_text
from rankloom.plan.exported import folders_of_export, model_folder, refuse_foreign_folders
from rankloom.plan.metrics_rows import refuse_other_content
from rankloom.records import PYTHON_DOCS, Sources, data_files
from rankloom.records.source import short_path

__all__ = ["check_outputs", "check_room"]

DIR, METRICS, RESUME = "checkpoint.dir", "logging.metrics", "checkpoint.resume"
STATE_BYTES = 12  # of a parameter in a checkpoint beside its weight: fp32 master and two moments


def check_outputs(examined: Examined) -> Iterator[Finding]:
    """Outputs that cannot be written, or would take the place of anything but the same output of an earlier
    run."""
    yield from _resume_problem(examined)
    said: set[str] = set()
    for key, find in ((DIR, _folder_problem), (METRICS, _metrics_problem), (DIR, _model_folder_problem)):
        path = examined.value(key)
        if path is None or examined.value(DIR) is None:
            continue
        try:
            problem = find(examined, Path(str(path)))
        except (OSError, RuntimeError) as error:  # a name that is too long, links that go round in circles
            problem = f"{short_path(str(path))} cannot be used: {getattr(error, 'strerror', None) or error}"
        if problem and problem not in said:
            said.add(problem)
            written = METRICS if examined.sources.get(METRICS) not in (None, "derived") else DIR
            where = examined.where(written if key == METRICS else DIR) or "the default"
            yield Finding("error", "outputs", f"{key}: {problem}", (key,), where)


def _resume_problem(examined: Examined) -> Iterator[Finding]:
    """A run goes on from what is there, unless somebody names something else."""
    wanted = examined.value(RESUME)
    if wanted in (None, "auto", "never") or Path(str(wanted)).is_dir():
        return
    message = f"{RESUME}: there is no folder {short_path(str(wanted))}; it is auto, never, or a checkpoint"
    yield Finding("error", "outputs", message, (RESUME,), examined.where(RESUME))


def check_room(examined: Examined, spec: ModelSpec) -> Iterator[Finding]:
    """Free disk against the final model, and the checkpoints that are kept besides: a warning, since the job
    may run on another machine."""
    folder = examined.value(DIR)
    element = ELEMENT_BYTES.get(str(examined.value("model.dtype")))
    if folder is None or element is None:
        return
    try:
        free = shutil.disk_usage(_nearest_existing(Path(str(folder)))).free
    except OSError:
        return  # a folder that cannot be looked at is a finding of its own
    model = spec.num_parameters * element
    saves, keep = examined.value("checkpoint.save_every"), examined.value("checkpoint.keep")
    number = keep + 1 if isinstance(saves, int) and saves > 0 and isinstance(keep, int) else 0
    checkpoints = number * (model + spec.num_parameters * STATE_BYTES)
    needed = model + checkpoints
    if free < needed:
        parts = f"{bytes_text(model)} for the final model"
        if number:
            kept = f"checkpoint.keep {keep}, and one in the making"
            parts += f", and {bytes_text(checkpoints)} for {number} checkpoints ({kept})"
        what = f"{DIR} {short_path(str(folder))}"
        message = f"{what}: {bytes_text(free)} are free here, and the run writes {parts}"
        yield Finding("warning", "outputs", message, (DIR,), examined.where(DIR) or "the default")


def _inputs(examined: Examined) -> Iterator[tuple[str, Path]]:
    """Everything that a run reads, with the setting that names it."""
    model, data = examined.value("model.path"), examined.get(DataSection) or DataSection()
    if model is not None:
        yield "model.path", Path(str(model))
    for key, sources in (("data.train", data.train), ("data.validation", data.validation)):
        yield from ((key, path) for path in _paths(sources))
    if Path(examined.origin).is_file():
        yield "the config file", Path(examined.origin)


def _paths(sources: Sources | None) -> list[Path]:
    try:
        files = data_files(sources) if sources is not None else ()
    except UserError:
        return []  # a finding about the data says why
    return [Path(file.path) for file in files if file.kind != PYTHON_DOCS]


def _model_folder_problem(examined: Examined, folder: Path) -> str:
    exports = folders_of_export(model_folder(folder))
    for name, path in [*_inputs(examined), (METRICS, Path(str(examined.value(METRICS))))]:
        for export in exports:
            if _overlap(path, export):
                return (
                    f"the trained model would replace {export}, which overlaps with {name} {path}; set "
                    "checkpoint.dir to another folder"
                )
    try:
        refuse_foreign_folders(*exports)
    except UserError as error:
        return str(error)
    return ""


def _metrics_problem(examined: Examined, file: Path) -> str:
    for name, path in _inputs(examined):
        if file.resolve() == path.resolve():
            return f"{file} is {name}; set it to another path"
    if file.is_dir():
        return f"{file} is a folder; it must be a file"
    if not file.exists():
        return _folder_problem(examined, file.parent)
    if not os.access(file, os.R_OK | os.W_OK):
        return f"{file} cannot be read and written"
    try:
        refuse_other_content(file)
    except UserError as error:
        return str(error)
    return ""


def _folder_problem(_: Examined, folder: Path) -> str:
    place = _nearest_existing(folder)
    if not place.is_dir():
        return f"the folder {folder} cannot be made: {place} is no folder"
    if not os.access(place, os.W_OK | os.X_OK):
        what = f"the folder {folder} is not writable"
        return what if place == folder else f"the folder {folder} cannot be made: {place} is not writable"
    return ""


def _nearest_existing(path: Path) -> Path:
    """The path, or the nearest of the folders it lies in that is there."""
    path = path.absolute()
    while not (path.exists() or path.is_symlink()) and path != path.parent:
        path = path.parent
    return path


def _overlap(one: Path, other: Path) -> bool:
    one, other = one.resolve(), other.resolve()
    return one.is_relative_to(other) or other.is_relative_to(one)
