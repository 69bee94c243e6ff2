"""``resolve``: a config mapping, the command line and defaults in code become one config, or one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from rankloom.config.batch import BatchArithmetic
from rankloom.config.draft import Draft, Settings
from rankloom.config.notes import notes_on
from rankloom.config.overlay import Overlay
from rankloom.config.schema import (
    SECTIONS,
    CheckpointSection,
    ClusterSection,
    CommSection,
    DataSection,
    LoggingSection,
    ModelSection,
    OptimizerSection,
    ParallelSection,
    ScheduleSection,
    TrainSection,
)
from rankloom.config.shown import shown
from rankloom.config.yaml_file import read_yaml
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout

__all__ = [
    "ResolvedConfig",
    "ResolvedLayout",
    "load",
    "load_layout",
    "read_mapping",
    "resolve",
    "resolve_layout",
]

T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedConfig:
    """Every setting with its value, derived ones filled in, and what follows from them at once.

    ``model.config`` is a plain dict: treat it as read-only.
    """

    model: ModelSection
    parallel: ParallelSection
    data: DataSection
    train: TrainSection
    optimizer: OptimizerSection
    schedule: ScheduleSection
    checkpoint: CheckpointSection
    cluster: ClusterSection
    comm: CommSection
    logging: LoggingSection
    layout: GTPParallelLayout
    batch: BatchArithmetic
    origin: str
    _sources: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def sources(self) -> Mapping[str, str]:
        """Dotted key -> "cli", "file", "default" (given in code) or "derived" (class defaults too)."""
        return MappingProxyType(dict(self._sources))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines to show before training about settings that will not do what they seem to say."""
        return tuple(note.message for note in notes_on(self.value, self.sources))

    def value(self, key: str) -> object:
        """The value of a dotted key."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def where(self, *keys: str) -> str:
        """Where settings came from, for messages: "train section of run.yaml; --data.seed"; "" if derived."""
        return Overlay({}, self.sources, self.origin).where(*keys)

    def to_mapping(self) -> dict[str, dict[str, object]]:
        """Plain dicts, lists and values: valid input for ``resolve``, which gives the same settings again."""
        return {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS}


@dataclass(frozen=True)
class ResolvedLayout:
    """The part of a config that a layout needs; there may be no train section."""

    parallel: ParallelSection
    cluster: ClusterSection
    layout: GTPParallelLayout
    origin: str
    sources: Mapping[str, str]


def resolve(
    mapping: Settings,
    *,
    cli: Settings | None = None,
    defaults: Settings | None = None,
    origin: str = "config",
) -> ResolvedConfig:
    """The resolved config: ``cli`` over ``mapping`` (the file) over ``defaults`` over what is derived.

    ``mapping`` is nested by section; ``cli`` and ``defaults`` have dotted keys ("train.max_steps", also
    "model.config.hidden_size") or sections. A null hides weaker values. ``origin``: the file, for messages.
    Raises UserError with everything that is wrong, one problem a line.
    """
    draft = Draft.of(mapping, cli=cli, defaults=defaults, origin=origin)
    layout = draft.layout()
    batch = draft.batch(layout) if layout is not None else None
    draft.fill(layout)
    draft.raise_findings()
    return ResolvedConfig(
        model=_present(draft.get(ModelSection)),
        parallel=_present(draft.get(ParallelSection)),
        data=_present(draft.get(DataSection)),
        train=_present(draft.get(TrainSection)),
        optimizer=_present(draft.get(OptimizerSection)),
        schedule=_present(draft.get(ScheduleSection)),
        checkpoint=_present(draft.get(CheckpointSection)),
        cluster=_present(draft.get(ClusterSection)),
        comm=_present(draft.get(CommSection)),
        logging=_present(draft.get(LoggingSection)),
        layout=_present(layout),
        batch=_present(batch),
        origin=origin,
        _sources=tuple(draft.sources().items()),
    )


def load(
    path: str | Path, *, cli: Settings | None = None, defaults: Settings | None = None
) -> ResolvedConfig:
    """``resolve`` for a YAML file. Raises UserError too for a missing file, or with the line at fault."""
    return resolve(read_mapping(path), cli=cli, defaults=defaults, origin=str(path))


def resolve_layout(
    mapping: Settings,
    *,
    cli: Settings | None = None,
    defaults: Settings | None = None,
    origin: str = "config",
) -> ResolvedLayout:
    """The layout of a config that need not say what to train; arguments and errors as for ``resolve``.

    ``sources`` then has the keys of the parallel and cluster sections alone.
    """
    names = ("parallel", "cluster")
    draft = Draft.of(mapping, cli=cli, defaults=defaults, origin=origin, names=names)
    layout = draft.layout()
    draft.fill(layout)
    draft.raise_findings()
    return ResolvedLayout(
        parallel=_present(draft.get(ParallelSection)),
        cluster=_present(draft.get(ClusterSection)),
        layout=_present(layout),
        origin=origin,
        sources={key: source for key, source in draft.sources().items() if key.split(".")[0] in names},
    )


def load_layout(
    path: str | Path, *, cli: Settings | None = None, defaults: Settings | None = None
) -> ResolvedLayout:
    """``resolve_layout`` for a YAML file."""
    return resolve_layout(read_mapping(path), cli=cli, defaults=defaults, origin=str(path))


def read_mapping(path: str | Path) -> Settings:
    """The content of a YAML file of settings. Raises UserError where it cannot be read or is no mapping."""
    content = read_yaml(Path(path))
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise UserError(f"{path} must be a mapping of sections ({', '.join(SECTIONS)}), not {shown(content)}")
    return content


def _present(value: T | None) -> T:
    """A part that is there because no problem was found."""
    assert value is not None
    return value
