"""Room for the ranks of a run in a cluster: one placement group, whose bundles are asked where they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

import ray
from ray import ObjectRef
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rankloom.driver.keeper import NodeKeeper
from rankloom.driver.nodes import Device, Node, refuse_shortage
from rankloom.driver.nvlink import domain_of_labels
from rankloom.driver.places import PlacementMap, RankPlace
from rankloom.driver.remote import Actor, alive_nodes, make_actor
from rankloom.driver.seats import choose_seats
from rankloom.errors import RunError, UserError
from rankloom.layout import GTPParallelLayout
from rankloom.layout.node_choice import natural_order
from rankloom.train.signals import interrupts_ignored

__all__ = ["Placement", "on_this_node"]

T = TypeVar("T")

_PATIENCE_S = 30.0
_KEEPER_PATIENCE_S = 60.0  # for a process to start on a busy node
_LEAVE_PATIENCE_S = 5.0
_NODE_ID_LABEL = "ray.io/node-id"


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """For ``options(scheduling_strategy=...)``: where this process runs, and so where its files are."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


class Placement:
    """A placement group with a bundle for each rank, and a keeper on each of its nodes.

    ``map`` says where every rank stands. Made with :meth:`make`; leaving it as a context gives the room back.
    """

    def __init__(
        self,
        group: PlacementGroup,
        ranks: PlacementMap,
        keepers: Mapping[str, Actor],
        folders: Mapping[str, str],
    ) -> None:
        self._group = group
        self.map = ranks
        self.keepers = keepers  # node id -> the keeper there
        self.folders = folders  # node id -> a folder there, which goes with the placement

    @classmethod
    def make(
        cls,
        nodes: Sequence[Node],
        layout: GTPParallelLayout,
        *,
        device: Device,
        nodes_per_segment: int | None = None,
        where: str = "",
        patience_s: float = _PATIENCE_S,
    ) -> Self:
        """Takes room for the ranks of ``layout`` on some of ``nodes``, tiles inside NVLink domains where that
        is possible (:func:`choose_seats`).

        Raises UserError at once where the nodes have no room for all, with both numbers (``where``: where the
        world size came from), and where segments are asked for that are not there; RunError where the room is
        taken by others for ``patience_s``.
        """
        refuse_shortage(nodes, layout, device=device, where=where)
        keepers: dict[str, Actor] = {}
        group = None
        try:
            domains = _domains(nodes, keepers, device=device)
            seats = choose_seats(nodes, domains, layout, device=device, nodes_per_segment=nodes_per_segment)
            _keep_only(keepers, {seat.node_id for seat in seats})
            group = _take_room(seats, device=device, patience_s=patience_s)
            places = _places(group, seats, domains, layout, device=device)
            folders = _folders(keepers, seats)
        except BaseException:
            _give_back(group, keepers)
            raise
        return cls(group, PlacementMap(layout, device, places), keepers, folders)

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """For ``options(scheduling_strategy=...)``: the place of a rank."""
        return PlacementGroupSchedulingStrategy(self._group, self.map.of(rank).bundle)

    def refuse_missing(self, paths: Sequence[str]) -> None:
        """Raises UserError where a path (absolute) is not there on a node with ranks, naming both."""
        asked = {node.name: self.keepers[node.node_id].missing.remote(list(paths)) for node in self.map.nodes}
        answers = _answers(list(asked.values()), list(asked))
        missing = [(name, path) for name, found in zip(asked, answers, strict=True) for path in found]
        if missing:
            lines = [f"node {name} has no {path}" for name, path in missing[:8]]
            lines += [f"and {len(missing) - 8} more"] * (len(missing) > 8)
            lines.append("every node with ranks needs it: use a folder that all of them share")
            raise UserError("\n".join(lines))

    def lost_nodes(self) -> tuple[Node, ...]:
        """Those of its nodes that are no longer in the cluster."""
        alive = {row["NodeID"] for row in alive_nodes()}
        return tuple(node for node in self.map.nodes if node.node_id not in alive)

    def close(self) -> None:
        """Gives the room back; ranks that are still there end."""
        with interrupts_ignored():
            if ray.is_initialized():
                _give_back(self._group, self.keepers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _domains(nodes: Sequence[Node], keepers: dict[str, Actor], *, device: Device) -> dict[str, str | None]:
    """Node id -> NVLink domain: from labels; for GPUs without, from what they report. Starts the keepers that
    ask."""
    domains = {node.node_id: domain_of_labels(node.labels) for node in nodes}
    if device == "cuda":
        unknown = [node for node in nodes if domains[node.node_id] is None and node.num_gpus]
        for node in unknown:
            keepers[node.node_id] = _start_keeper(node)
        asked = [keepers[node.node_id].nvlink_domain.remote() for node in unknown]
        answers = _answers(asked, [node.name for node in unknown])
        domains.update({node.node_id: domain for node, domain in zip(unknown, answers, strict=True)})
    return domains


def _start_keeper(node: Node) -> Actor:
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return make_actor(NodeKeeper, num_cpus=0, scheduling_strategy=strategy)


def _keep_only(keepers: dict[str, Actor], wanted: set[str]) -> None:
    for node_id in [node_id for node_id in keepers if node_id not in wanted]:
        ray.kill(keepers.pop(node_id))


def _folders(keepers: dict[str, Actor], seats: Sequence[Node]) -> dict[str, str]:
    """Node id -> its keeper's folder. Starts the keepers that are not there yet."""
    nodes = {seat.node_id: seat for seat in seats}
    for node_id, node in nodes.items():
        if node_id not in keepers:
            keepers[node_id] = _start_keeper(node)
    asked = [keepers[node_id].folder.remote() for node_id in nodes]
    folders = _answers(asked, [node.name for node in nodes.values()])
    return dict(zip(nodes, folders, strict=True))


def _take_room(seats: Sequence[Node], *, device: Device, patience_s: float) -> PlacementGroup:
    """Bundle i on the node of seat i. Pinned by Ray's own label, which every node has."""
    resource = "GPU" if device == "cuda" else "CPU"
    group: PlacementGroup = placement_group(
        [{resource: 1.0}] * len(seats),
        strategy="PACK",
        bundle_label_selector=[{_NODE_ID_LABEL: seat.node_id} for seat in seats],
    )
    if not group.wait(patience_s):
        remove_placement_group(group)
        free = int(ray.available_resources().get(resource, 0))  # type: ignore[no-untyped-call]
        raise RunError(
            f"no room for {len(seats)} ranks within {patience_s:g} s: they need a {resource} each on nodes "
            f"{', '.join(sorted({seat.name for seat in seats})[:8])}, and {free} {resource}s are free in the "
            "cluster now; other jobs hold the rest (ray status shows how much)"
        )
    return group


def _places(
    group: PlacementGroup,
    seats: Sequence[Node],
    domains: Mapping[str, str | None],
    layout: GTPParallelLayout,
    *,
    device: Device,
) -> tuple[RankPlace, ...]:
    """Inside a node, which holds neighbouring bundles, ranks follow the numbers of the devices."""
    devices = _gpu_numbers(group, seats) if device == "cuda" else _numbers_on_node(seats)
    nodes = {seat.node_id: place for place, seat in reversed(list(enumerate(seats)))}
    order = sorted(range(len(seats)), key=lambda bundle: (nodes[seats[bundle].node_id], devices[bundle]))
    return tuple(
        RankPlace(rank, bundle, seats[bundle], devices[bundle], domains[seats[bundle].node_id])
        for rank, bundle in zip(layout.ranks, order, strict=True)
    )


def _numbers_on_node(seats: Sequence[Node]) -> list[int]:
    counted = Counter[str]()
    numbers = []
    for seat in seats:
        numbers.append(counted[seat.node_id])
        counted[seat.node_id] += 1
    return numbers


def _gpu_numbers(group: PlacementGroup, seats: Sequence[Node]) -> list[int]:
    """The GPU that each bundle holds: it is the bundle's, and so its rank's later on."""
    asking = ray.remote(_gpu_name)
    asked = [
        asking.options(
            num_cpus=0, num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)
        ).remote()
        for bundle in range(len(seats))
    ]
    names = _answers(asked, [seat.name for seat in seats])
    if all(name.isdigit() for name in names):
        return [int(name) for name in names]
    in_order = sorted(range(len(seats)), key=lambda bundle: natural_order(names[bundle]))
    numbers = _numbers_on_node([seats[bundle] for bundle in in_order])
    return [number for _, number in sorted(zip(in_order, numbers, strict=True))]


def _gpu_name() -> str:
    """A number, or what the node's administrator chose to show in its place, such as a UUID."""
    return str(ray.get_gpu_ids()[0])


def _answers(asked: Sequence[ObjectRef[T]], node_names: Sequence[str]) -> list[T]:
    """Waits for processes on nodes. Raises RunError naming a node whose process does not come up."""
    _, waiting = (
        ray.wait(list(asked), num_returns=len(asked), timeout=_KEEPER_PATIENCE_S) if asked else ([], [])
    )
    if waiting:
        name = node_names[list(asked).index(waiting[0])]
        raise RunError(f"node {name} started no process within {_KEEPER_PATIENCE_S:g} s; is it overloaded?")
    return ray.get(list(asked))


def _give_back(group: PlacementGroup | None, keepers: Mapping[str, Actor]) -> None:
    """Removing the group ends the actors in it. A keeper on a lost node does not answer."""
    if group is not None:
        remove_placement_group(group)
    leaving = [keeper.leave.remote() for keeper in keepers.values()]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_PATIENCE_S)
    for keeper in keepers.values():
        ray.kill(keeper)
