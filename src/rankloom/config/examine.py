"""Settings of one job as far as they can be understood: nothing is raised, everything wrong is a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from rankloom.config.batch import BatchArithmetic
from rankloom.config.draft import Draft, Settings
from rankloom.config.findings import Finding
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.overlay import Overlay
from rankloom.config.resolved import ResolvedConfig
from rankloom.config.schema import SECTIONS, ClusterSection, ParallelSection, Section
from rankloom.layout import GTPParallelLayout

__all__ = ["OWN_PROGRAM", "Examined", "Place", "examine", "examine_layers"]

OWN_PROGRAM = "rankloom"
_TOPICS: Mapping[str, str] = {
    "cluster.world_size": "layout",
    **{f"parallel.{name}": "layout" for name in ParallelSection.model_fields},
    "train.global_batch_size": "batch",
    "train.micro_batch_size": "batch",
    "data.max_seq_length": "sequence",
}
AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class Place:
    """A setting that a finding is about: its key here, its name in the job's program, value and origin."""

    key: str
    spelled: str
    value: object
    source: str
    where: str


@dataclass(frozen=True, eq=False)
class Examined:
    """The settings of one job, from whichever program, with everything that was found wrong in them.

    ``sections`` holds those that could be made, derived values filled in and those of ``refused`` keys left
    out. ``layout`` and ``batch`` are None where they could not be made; the reason is a finding or, where a
    number was not given at all, in ``missing``.
    """

    program: str
    origin: str
    sections: Mapping[type[Section], Section]
    overlay: Overlay
    sources: Mapping[str, str]
    layout: GTPParallelLayout | None
    batch: BatchArithmetic | None
    findings: tuple[Finding, ...]
    missing: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()
    foreign: ForeignJob | None = None

    @classmethod
    def of(cls, resolved: ResolvedConfig) -> Examined:
        """A config in which nothing was found wrong."""
        sections = {kind: getattr(resolved, name) for name, kind in SECTIONS.items()}
        return cls(
            program=OWN_PROGRAM,
            origin=resolved.origin,
            sections=sections,
            overlay=Overlay({}, resolved.sources, resolved.origin),
            sources=resolved.sources,
            layout=resolved.layout,
            batch=resolved.batch,
            findings=(),
        )

    def get(self, kind: type[AnySection]) -> AnySection | None:
        """The section of this class; None if it is not there or could not be made."""
        section = self.sections.get(kind)
        return section if isinstance(section, kind) else None

    def value(self, key: str) -> object:
        """The resolved value of a dotted key; None where it was refused, or is not there."""
        section, _, name = key.partition(".")
        if key in self.refused or section in self.refused:
            return None
        holder = self.sections.get(SECTIONS[section]) if section in SECTIONS else None
        if holder is not None and name in type(holder).model_fields:
            return getattr(holder, name)
        return self.overlay.values.get(key)

    def place(self, key: str) -> Place:
        """Where a setting stands, what it is, and who said so."""
        source = self.sources.get(key) or self.overlay.sources.get(key, "derived")
        spelled = self.overlay.spelled.get(key, key)
        value = self.overlay.values.get(key) if key in self.refused else self.value(key)
        return Place(key, spelled, value, source, self.where(key))

    def where(self, *keys: str) -> str:
        """In words: "parallel section of run.yaml", "--seq-length in train.sh"; "" if all are derived."""
        return replace(self.overlay, sources={**self.overlay.sources, **self.sources}).where(*keys)

    def spell(self, text: str) -> str:
        """The text with our dotted keys as the job's own program spells them."""
        spelled = self.overlay.spelled
        if not spelled:
            return text
        pattern = "|".join(re.escape(key) for key in sorted(spelled, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])(?:{pattern})(?!\w)", lambda match: spelled[match[0]], text)


def examine(
    mapping: Settings,
    *,
    cli: Settings | None = None,
    defaults: Settings | None = None,
    origin: str = "config",
    flags: Iterable[str] = (),
    notes: Iterable[Finding] = (),
) -> Examined:
    """Examine one of our own configs; arguments as for ``resolve``. Every section may be left out.

    ``flags``: keys of ``cli`` that were given as flags of their own; ``notes``: findings to begin with.
    """
    examined = examine_layers(mapping, cli=cli, defaults=defaults, origin=origin, flags=flags)
    return replace(examined, findings=(*notes, *examined.findings))


def examine_layers(
    mapping: Settings,
    *,
    cli: Settings | None,
    defaults: Settings | None,
    origin: str,
    foreign: ForeignJob | None = None,
    flags: Iterable[str] = (),
    unknown: Iterable[str] = (),
) -> Examined:
    """``examine``, for the settings of ``foreign`` where that is given.

    ``unknown``: keys that the job sets to what nobody knows. Nothing is computed from their defaults.
    """
    layers = [mapping, cli or {}, defaults or {}]
    trains = any(str(key).split(".")[0] == "train" for layer in layers for key in layer)
    names = [name for name in SECTIONS if name != "train" or trains]
    spelled = foreign.spelled if foreign else {}
    draft = Draft.of(
        mapping, cli=cli, defaults=defaults, origin=origin, names=names, spelled=spelled, flags=flags
    )
    lost = [key for key in unknown if draft.overlay.values.get(key) is None]
    draft.refused.update(lost)
    draft.findings = [f for f in draft.findings if not f.keys or not set(lost).issuperset(f.keys)]
    cluster = draft.get(ClusterSection)
    worldless = cluster is not None and cluster.world_size is None and draft.sound("cluster.world_size")
    layout = None if worldless else draft.layout()
    batch = draft.batch(layout) if layout is not None else None
    draft.fill(layout)
    return Examined(
        program=foreign.program if foreign else OWN_PROGRAM,
        origin=origin,
        sections=draft.sections,
        overlay=draft.overlay,
        sources=draft.sources(),
        layout=layout,
        batch=batch,
        findings=tuple(draft.findings),
        missing=tuple(_missing(worldless=worldless, trains=trains, unknown=lost)),
        refused=frozenset(draft.refused),
        foreign=foreign,
    )


def _missing(*, worldless: bool, trains: bool, unknown: Iterable[str]) -> list[str]:
    """What was not given and would be needed to look further."""
    missing = [f"{_TOPICS[key]}: {key} is not known" for key in unknown if key in _TOPICS]
    if worldless:
        missing.append("layout: the number of ranks is not said; give --world-size")
    if not trains:
        missing.append("batch: there is no batch size (train.global_batch_size)")
    return missing
