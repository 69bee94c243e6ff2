"""Where every rank stands: the map as data, as a table for people, as JSON, and what in it is bad news."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rankloom.driver.nodes import Device, Node
from rankloom.driver.nvlink import DOMAIN_LABELS
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.axes import IntArray
from rankloom.layout.topology import LEVEL_WORDS, UNKNOWN
from rankloom.layout.words import ranks_text, stretches_text
from rankloom.plan.alternatives import HEAVY
from rankloom.plan.links import Crossing, crossings

__all__ = ["PlacementMap", "RankPlace"]


@dataclass(frozen=True)
class RankPlace:
    """``bundle`` of the placement group; ``device``: the number of the GPU on its node or, on CPUs, of the
    rank on its node; ``domain``: None where it is not known."""

    rank: int
    bundle: int
    node: Node
    device: int
    domain: str | None

    def to_json(self) -> dict[str, object]:
        """rank, node (name, address, id), device, nvlink_domain."""
        return {
            "rank": self.rank,
            "node": self.node.hostname,
            "address": self.node.address,
            "node_id": self.node.node_id,
            "device": self.device,
            "nvlink_domain": self.domain,
        }


@dataclass(frozen=True)
class PlacementMap:
    """The place of each rank of a layout, in rank order."""

    layout: GTPParallelLayout
    device: Device
    places: tuple[RankPlace, ...]

    def of(self, rank: int) -> RankPlace:
        """The place of a global rank."""
        return self.places[rank - self.layout.rank_offset]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that hold ranks, in the order of their first rank."""
        return tuple({place.node.node_id: place.node for place in self.places}.values())

    def to_json(self) -> list[dict[str, object]]:
        """One object a rank, in rank order."""
        return [place.to_json() for place in self.places]

    def table(self) -> str:
        """A line for every stretch of ranks on one node."""
        unit = "GPU" if self.device == "cuda" else "CPU"
        rows = [("ranks", "node", f"{unit}s", "NVLink domain")]
        for _, stretch in groupby(self.places, key=lambda place: place.node.node_id):
            places = list(stretch)
            ranks, devices = [p.rank for p in places], [p.device for p in places]
            first = places[0]
            row = (ranks_text(ranks), first.node.name, stretches_text(devices), first.domain or "unknown")
            rows.append(row)
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
            for row in rows
        )

    def topology(self) -> Topology:
        """Domains and nodes as numbers, in the order of their first rank."""
        return Topology(
            first_rank=self.layout.rank_offset,
            domains=_numbers(place.domain for place in self.places),
            nodes=_numbers(place.node.node_id for place in self.places),
            nvlink_domain_size=None,
            gpus_per_node=None,
        )

    def warnings(self) -> list[str]:
        """Groups that talk inside every layer and leave an NVLink domain or, where domains are not known, a
        node; and, with GPUs, ranks whose domain is not known."""
        topology = self.topology()
        unknown = [p.rank for p in self.places if p.domain is None]
        level = "node" if unknown else "domain"
        lines = [
            f"{crossing.describe()}{self._legend(crossing)}"
            for crossing in crossings(self.layout, topology)
            if crossing.num_crossing and crossing.group in HEAVY and crossing.level in (level, "domain")
        ]
        if unknown and self.device == "cuda":
            lines.append(
                f"the NVLink domain of {len(unknown)} ranks is not known ({stretches_text(unknown)}): their "
                "GPUs report no fabric, and their Ray nodes have no label for it; "
                f"ray start --labels {DOMAIN_LABELS[0]}=NAME gives them one"
            )
        return lines

    def _legend(self, crossing: Crossing) -> str:
        """What the numbers of the places in a crossing's words stand for."""
        topology = self.topology()
        names: dict[int, str | None] = {}
        for place, number in zip(self.places, topology.places(crossing.level).tolist(), strict=True):
            names.setdefault(number, place.domain if crossing.level == "domain" else place.node.name)
        shown = [f"{number} is {names[number]}" for number in crossing.example_places[:4]]
        return f" ({LEVEL_WORDS[crossing.level]} {', '.join(shown)})"


def _numbers(names: Iterable[str | None]) -> IntArray:
    """Each name by a number, counted from 0 as they come up: [number of names], ``UNKNOWN`` for None."""
    numbers: dict[str, int] = {}
    return np.array(
        [UNKNOWN if name is None else numbers.setdefault(name, len(numbers)) for name in names],
        dtype=np.int64,
    )
