"""Where the value of a setting came from, as the last words of an error message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CLUSTER_SETTINGS = ("world_size", "gpus_per_node", "nvlink_domain_size", "nvlink_domains")


def dotted(setting: str) -> str:
    """The dotted key of a layout setting: ``cluster.world_size``, but most are in ``parallel``."""
    return f"cluster.{setting}" if setting in CLUSTER_SETTINGS else f"parallel.{setting}"


@dataclass(frozen=True)
class Provenance:
    """Sources of settings (dotted key -> cli, file, default or derived) and the name of the file.

    >>> Provenance({"parallel.context_parallel_size": "file"}, "run.yaml").clause("context_parallel_size")
    ' (parallel section of run.yaml)'
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    def clause(self, *settings: str) -> str:
        """A closing clause that says where these settings came from; empty if nothing is known."""
        places = {name: place for name in settings if (place := self._place(name))}
        if not places:
            return ""
        if len(set(places.values())) == 1:
            return f" ({next(iter(places.values()))})"
        by_place: dict[str, list[str]] = {}
        for name, place in places.items():
            by_place.setdefault(place, []).append(name)
        texts = [f"{', '.join(names)}: {place}" for place, names in by_place.items()]
        return f" ({'; '.join(texts)})"

    def _place(self, setting: str) -> str:
        section = dotted(setting).split(".")[0]
        source = self.sources.get(dotted(setting), "")
        words = {
            "cli": "given on the command line",
            "file": f"{section} section of {self.origin or 'the config'}",
            "default": "a default given in code",
        }
        # A derived value was not chosen by anybody: naming it would send the reader to the wrong place.
        return words.get(source, "")
