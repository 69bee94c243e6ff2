"""Layers of settings laid over each other, each value remembering the layer it came from.

A *layer* is what one source says: the command line, the file, or defaults given in code. Stronger layers win,
key by key; ``model.config``, a free mapping, is merged key by key inside. A null in a stronger layer hides
what weaker layers say. Keys are dotted: ``train.max_steps``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rankloom.config.findings import Finding
from rankloom.config.keys import KEYS, MODEL_CONFIG, explain_unknown
from rankloom.config.schema import SECTIONS
from rankloom.config.shown import shown
from rankloom.config.yaml_file import as_number

__all__ = ["COMMAND_LINE", "Overlay", "Source", "lay_over", "section_place"]

Source = Literal["cli", "file", "default", "derived"]

MOST_TOLD = 20  # keys of a layer that are no settings
_KEYS = frozenset(KEYS)
COMMAND_LINE = "the command line"  # the origin of a job that no file describes
_LEFT_TO_THE_LAUNCHER = frozenset({"cluster.world_size"})  # null here is "what torchrun says", not "unset"


@dataclass(frozen=True)
class Overlay:
    """The values given by any layer (also under keys that are none), their sources, and what is wrong.

    ``spelled``: how another program calls a key, where the settings are those of another program's job.
    ``flags``: keys that were given as flags of their own, ``--world-size``, not as ``--cluster.world_size``.
    """

    values: Mapping[str, object]
    sources: Mapping[str, str]
    origin: str
    findings: tuple[Finding, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()

    def where(self, *keys: str) -> str:
        """Where values came from: "train section of run.yaml; --train.max_steps"; "" if all are derived."""
        foreign = [key for key in keys if key in self.spelled and self.sources.get(key) == "file"]
        places = [
            self._foreign_place(foreign) if key in foreign else self._place(key, self.sources.get(key, ""))
            for key in self._written(keys)
        ]
        return "; ".join(dict.fromkeys(place for place in places if place))

    def _foreign_place(self, keys: Iterable[str]) -> str:
        """Settings of another program's job, as it spells them, and its file."""
        names = ", ".join(dict.fromkeys(self.spelled[key] for key in keys))
        return f"{names} {'on' if self.origin == COMMAND_LINE else 'in'} {self.origin}"

    def _place(self, key: str, source: str) -> str:
        if source == "cli" and key in self.flags:
            return "given on the command line"
        if key in self.spelled and source == "default":
            return f"the default of {self.spelled[key]}"
        return describe_source(key, source, self.origin)

    def _written(self, keys: Iterable[str]) -> Iterator[str]:
        """The keys as they were written: the command line names keys below ``model.config``, not itself."""
        for key in keys:
            source = self.sources.get(key)
            below = [k for k, s in self.sources.items() if k.startswith(f"{key}.") and s == source == "cli"]
            yield from below or [key]


def section_place(section: str, origin: str) -> str:
    """Where a section is, or would be, written: "train section of run.yaml"."""
    return f"{section} section of {origin}" if section in SECTIONS and origin != COMMAND_LINE else origin


def describe_source(key: str, source: str, origin: str) -> str:
    """In words a user can act on; "" for a derived value, which nobody wrote."""
    words = {
        "cli": f"--{key}",
        "file": section_place(key.split(".")[0], origin),
        "default": f"default of {key} given in code",
    }
    return words.get(source, "")


def lay_over(layers: Mapping[Source, Mapping[str, object]], *, origin: str) -> Overlay:
    """``layers`` from the weakest to the strongest: nested mappings, dotted keys, or a mixture of both."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    findings: list[Finding] = []
    for source, layer in layers.items():
        if source == "file":
            layer, slips = _without_dotted(layer)
            told = list(slips.items())[:MOST_TOLD]
            findings += [Finding("error", "settings", slip, (key,), origin) for key, slip in told]
        wrong: list[str] = []
        for key, value in _entries(layer):
            if not _is_setting(key):
                wrong.append(key)
                values[key], sources[key] = value, source
            elif value is None and key in _LEFT_TO_THE_LAUNCHER:
                continue
            elif key == MODEL_CONFIG or key.startswith(f"{MODEL_CONFIG}."):
                _merge_model_config(values, sources, key=key, value=value, source=source)
            else:
                values[key], sources[key] = value, source
        findings += _refusals(wrong, values, source, origin)
    return Overlay(values, sources, origin, tuple(findings))


def _without_dotted(layer: Mapping[str, object]) -> tuple[Mapping[str, object], dict[str, str]]:
    """A file without dotted keys at its top level, and what to say about each of them: files nest."""
    parts = {key: key.partition(".") if isinstance(key, str) else ("",) * 3 for key in layer}
    slips = {
        str(key): f"{key} cannot stand at the top level; write {section}: {{{rest}: ...}}"
        for key, (section, dot, rest) in parts.items()
        if dot
    }
    return {key: body for key, body in layer.items() if not parts[key][1]}, slips


def _entries(layer: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """(path, value) for every setting of a layer; an empty section has none."""
    for name, body in layer.items():
        key = str(name)
        if key in SECTIONS and isinstance(body, Mapping):
            yield from ((f"{key}.{inner}", value) for inner, value in body.items())
        elif not (key in SECTIONS and body is None):
            yield key.replace("-", "_") if "." in key else key, body


def _is_setting(key: str) -> bool:
    return key.startswith(f"{MODEL_CONFIG}.") or ("." in key and key in _KEYS)


def _refusals(keys: list[str], values: Mapping[str, object], source: str, origin: str) -> Iterator[Finding]:
    """A finding for each of the first keys of a layer that are no settings, and one for all the others."""
    told = [key for place, key in enumerate(keys) if place < MOST_TOLD or key in SECTIONS]
    for key in told:
        problem = explain_unknown(key)
        if key in SECTIONS:
            problem = f"{key} is a section of settings, not a value: {shown(values[key])}"
        yield Finding("error", "settings", problem, (key,), describe_source(key, source, origin))
    if more := len(keys) - len(told):
        where = origin if source == "file" else ""
        yield Finding("error", "settings", f"{more} more keys are no settings", (), where)


def _merge_model_config(
    values: dict[str, object], sources: dict[str, str], *, key: str, value: object, source: Source
) -> None:
    """Lays one layer's ``model.config`` (or one key below it) over what weaker layers gave."""
    for part in reversed(key.removeprefix(MODEL_CONFIG).split(".")[1:]):
        value = {part: value}
    below = values.get(MODEL_CONFIG)
    if isinstance(value, Mapping):
        sources.update({f"{MODEL_CONFIG}.{name}": source for name in value})
        value = _merged(below if isinstance(below, Mapping) else {}, value)
    else:
        for name in [s for s in sources if s.startswith(f"{MODEL_CONFIG}.")]:
            del sources[name]
    values[MODEL_CONFIG], sources[MODEL_CONFIG] = value, source


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            merged[key] = as_number(value)
    return merged
