"""Where a run begins: at its first step, or where one of its checkpoints ends.

The first rank looks and all ranks do what it found. What differs from the settings a checkpoint was saved
with is said; what would make another model of it, or train on other data, is refused unless it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from rankloom import __version__
from rankloom.checkpoint import (
    DamagedCheckpoint,
    Manifest,
    complete_checkpoints,
    find_checkpoint,
    list_checkpoints,
    read_manifest,
)
from rankloom.checkpoint.manifest import LayoutFacts
from rankloom.checkpoint.together import together
from rankloom.comm import Communicator, tell_all
from rankloom.config import ResolvedConfig
from rankloom.config.changes import Change, changed_settings, differences, is_about_records, not_named
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelSpec
from rankloom.train.worker import Restored, Worker

__all__ = ["Candidates", "find_candidates", "resume"]

CHANGED = "changed: "
# Of config.json: what says nothing about the model.
_NOT_THE_MODEL = (
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)


@dataclass(frozen=True)
class Candidates:
    """Checkpoints to begin from, the first one that is whole; none: a run from its first step. ``notes``:
    what else was found."""

    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""


def find_candidates(resolved: ResolvedConfig, comm: Communicator) -> Candidates:
    """What ``checkpoint.resume`` asks for, as the first rank sees it. A collective of all ranks; raises
    UserError on all of them."""
    mine = asdict(_look(resolved)) if comm["world"].index == 0 else None
    told = tell_all(comm["world"], mine, "checkpoint: where to begin", device=comm.device)[0]
    found = Candidates(tuple(told["folders"]), tuple(told["notes"]), told["error"])
    if found.error:
        raise UserError(f"{found.error} ({_where(resolved)})")
    return found


def _where(resolved: ResolvedConfig) -> str:
    return resolved.where("checkpoint.resume", "checkpoint.dir") or "defaults"


def _look(resolved: ResolvedConfig) -> Candidates:
    section = resolved.checkpoint
    if section.resume not in ("auto", "never"):
        try:
            return Candidates((str(find_checkpoint(section.resume)),), _later(resolved))
        except UserError as error:
            return Candidates(error=f"checkpoint.resume: {error}{_hint(Path(section.resume))}")
    complete = complete_checkpoints(section.dir)
    if section.resume == "never":
        return Candidates(notes=_earlier(section.dir, complete))
    broken = [f for f in list_checkpoints(section.dir) if not f.complete and not f.leftover]
    notes = tuple(_passed_over(f.reason) for f in broken)
    if broken and not complete:
        reasons = "; ".join(f.reason for f in broken)
        none = f"no checkpoint in {section.dir} is complete: {reasons}"
        return Candidates(error=f"{none}. Mend one, or set checkpoint.resume to never to start anew")
    return Candidates(tuple(map(str, complete)), notes)


def _hint(folder: Path) -> str:
    if not any(folder.glob("model*.safetensors")):
        return ""
    return "; it is a model folder: to start a new run from its weights, set model.path"


def _passed_over(reason: str) -> str:
    return f"warning: {reason}; it is passed over"


def _earlier(directory: str, complete: Sequence[Path]) -> tuple[str, ...]:
    if not complete:
        return ()
    return (
        f"{directory} holds checkpoints of an earlier run, the latest {complete[0].name}; this run starts "
        "anew, as checkpoint.resume is never, and its checkpoints take their place",
    )


def _later(resolved: ResolvedConfig) -> tuple[str, ...]:
    """A run that goes back in its own folder leaves later checkpoints where they are."""
    wanted, directory = find_checkpoint(resolved.checkpoint.resume), resolved.checkpoint.dir
    step = read_manifest(wanted).step
    later = [f.path.name for f in list_checkpoints(directory) if f.complete and f.step > step]
    if not later:
        return ()
    return (
        f"{directory} holds checkpoints of later steps than {wanted.name}: {', '.join(sorted(later))}; they "
        "stay until those of this run take their place",
    )


def resume(resolved: ResolvedConfig, comm: Communicator, worker: Worker, candidates: Candidates) -> Restored:
    """Goes on from the first candidate that is whole. A collective of all ranks.

    With ``checkpoint.resume: auto`` the one before a damaged one is taken, with a warning. Raises UserError
    where none is whole, or the run would not be the same one.
    """
    notes, damaged = list(candidates.notes), []
    for folder in candidates.folders:
        try:
            restored = _from(resolved, comm, worker, Path(folder))
        except DamagedCheckpoint as error:
            if resolved.checkpoint.resume != "auto":
                raise UserError(f"{error} ({_where(resolved)})") from error
            notes.append(_passed_over(str(error)))
            damaged.append(str(error))
            continue
        return replace(restored, notes=(*notes, f"resumed from {folder}", *restored.notes))
    raise UserError(
        f"no checkpoint in {resolved.checkpoint.dir} is whole: {'; '.join(damaged)}. To start anew, set "
        f"checkpoint.resume to never ({_where(resolved)})"
    )


def _from(resolved: ResolvedConfig, comm: Communicator, worker: Worker, folder: Path) -> Restored:
    comparison: _Comparison | None = None
    with together(comm, "checkpoint: compare settings"):
        if comm["world"].index == 0:
            comparison = _Comparison.of(folder, resolved, worker.model_config)
    mine = asdict(comparison) if comparison is not None else None
    told = tell_all(comm["world"], mine, "checkpoint: what has changed", device=comm.device)[0]
    if told["refused"]:
        raise UserError(f"{told['refused']} ({resolved.where('model.config', 'model.path')})")
    try:
        restored = worker.load(folder)
    except DamagedCheckpoint:
        raise
    except UserError as error:
        raise UserError(_explained(error, folder, told["records"])) from error
    changed = [note for note in (*told["notes"], *told["records"]) if not _is_said(note, restored.notes)]
    return replace(restored, notes=(*changed, *restored.notes))


def _explained(error: UserError, folder: Path, records: Sequence[str]) -> str:
    """With the checkpoint, and the settings that may be the reason and that the error does not name."""
    text = str(error)
    unsaid = [note.removeprefix(CHANGED) for note in records]
    unsaid = [note for note in unsaid if note.split(" was ")[0] not in text]
    place = "" if str(folder) in text else f"{folder}: "
    return f"{place}{text}{'; changed since it was saved: ' * bool(unsaid)}{'; '.join(unsaid)}"


def _is_said(note: str, others: Sequence[str]) -> bool:
    """Whether the data's own words on a setting say it too."""
    return any(other.startswith(note.removeprefix(CHANGED)) for other in others)


@dataclass(frozen=True)
class _Comparison:
    """What differs from when a checkpoint was saved, in words. ``records``: settings that may stand for
    other data; ``refused``: why the run is not to go on, or ""."""

    notes: list[str]
    records: list[str]
    refused: str = ""

    @classmethod
    def of(cls, folder: Path, resolved: ResolvedConfig, model_config: Mapping[str, Any]) -> _Comparison:
        manifest, allowed = read_manifest(folder), resolved.checkpoint.allow_changes
        saved_model = _completed(manifest.model.config)
        model = differences(saved_model, model_config, prefix="model.config.", ignored=_NOT_THE_MODEL)
        refused = not_named(model, allowed)
        settings = changed_settings(manifest.config, resolved.to_mapping()) if manifest.config else []
        told = [*(c for c in model if c not in refused), *(c for c in settings if not is_about_records(c))]
        return cls(
            notes=[*_other_layout(manifest, resolved.layout), *_other_version(manifest), *_texts(told)],
            records=_texts([c for c in settings if is_about_records(c)]),
            refused=_refusal(folder, refused, fits=_fits(manifest, model_config)) if refused else "",
        )


def _refusal(folder: Path, changes: Sequence[Change], *, fits: bool) -> str:
    remedy = (
        "name these settings in checkpoint.allow_changes"
        if fits
        else "begin a new run in another checkpoint.dir: its weights do not fit"
    )
    told = "; ".join(change.text for change in changes)
    return f"the checkpoint {folder} was saved with another model: {told}. Set it back, or {remedy}"


def _fits(manifest: Manifest, model_config: Mapping[str, Any]) -> bool:
    """Whether the parameters have the same names and shapes."""
    saved, now = manifest.model.spec, ModelSpec.from_config(model_config)
    return {p.name: p.shape for p in saved.parameters} == {p.name: p.shape for p in now.parameters}


def _completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with the settings that it leaves at their default."""
    given = dict(config)
    completed: dict[str, Any] = AutoConfig.for_model(given.pop("model_type"), **given).to_dict()
    return completed


def _texts(changes: Sequence[Change]) -> list[str]:
    return [f"{CHANGED}{change.text}" for change in changes]


def _other_layout(manifest: Manifest, layout: GTPParallelLayout) -> list[str]:
    now = LayoutFacts.of(layout)
    if now.fingerprint == manifest.layout.fingerprint or not manifest.random:  # no ranks: it was imported
        return []
    return [f"saved on {manifest.layout.describe()}; now {now.describe()}"]


def _other_version(manifest: Manifest) -> list[str]:
    if manifest.rankloom_version == __version__:
        return []
    return [f"saved by rankloom {manifest.rankloom_version}; this is {__version__}"]
