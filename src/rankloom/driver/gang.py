"""All ranks of a run as Ray actors: started together, called one by one, ended together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray import ObjectRef, cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from rankloom.driver.actor import RankStart, WorkerFactory, rank_class
from rankloom.driver.faults import FailedCall, describe_failure
from rankloom.driver.group import Patience
from rankloom.driver.keeper import RankEnd
from rankloom.driver.placement import Placement, on_this_node
from rankloom.driver.ports import Rendezvous, StoreHost
from rankloom.driver.remote import Actor, make_actor
from rankloom.driver.under_way import CallsUnderWay, RemoteTask
from rankloom.errors import RankloomError, RunError
from rankloom.layout.words import stretches_text
from rankloom.train.signals import interrupts_ignored

__all__ = ["Gang"]

_START_PATIENCE_S = 600.0  # imports from a busy shared file system take minutes
_ENDS_PATIENCE_S = 5.0  # for what ranks left to be read on their nodes
_END_PATIENCE_S = 10.0  # for killed processes to be gone
_SMALL_TYPES = (bool, int, float, str, bytes, type(None))
_MOST_SMALL_BYTES = 1024


class Gang:
    """The workers of all ranks of a placement, for ``BoundCalls``; satisfies ``driver.Group``.

    Made with :meth:`start`. As a context it ends all its processes, whatever happened. The first failure ends
    them too; a gang that has failed is over: start another one, in the same placement or in a new one.
    """

    def __init__(self, placement: Placement, log_folder: Path) -> None:
        self.placement = placement
        self._log_folder = log_folder
        self._name = uuid.uuid4().hex
        self._actors: dict[int, Actor] = {}
        self._store: list[Actor] = []
        self._under_way = CallsUnderWay()
        self._over = ""
        self._closed = False

    @classmethod
    def start(
        cls,
        placement: Placement,
        factory: WorkerFactory,
        args: Sequence[Any] = (),
        *,
        log_folder: Path,
        rendezvous: bool = True,
        ports: range | None = None,
        appends: bool = False,
        patience_s: float = _START_PATIENCE_S,
    ) -> Self:
        """Starts a process for each rank and builds its worker there: ``factory(context, *args)``, with a
        function at the top level of a module and a ``RankContext``.

        Ranks print to ``<log_folder>/rank-N.log``, behind what is there if ``appends``. ``rendezvous``: open
        a store through which they meet, on one of ``ports`` (without: on any free one). Raises UserError or
        RunError for the first rank that fails; whatever is raised, no process is left.
        """
        gang = cls(placement, log_folder.resolve())
        try:
            gang._create(appends=appends)
            store = gang._open_store(ports) if rendezvous else None
            gang._build(_pickled((factory, tuple(args))), store, patience_s=patience_s)
        except BaseException:
            gang.close()
            raise
        return gang

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self._actors)

    def share(self, value: Any) -> Any:
        """Puts all but small values into the object store, where ranks of a node find one copy."""
        if isinstance(value, ObjectRef) or _is_small(value):
            return value
        return ray.put(value)

    def submit(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteTask:
        """Calls a method; the worker of a rank runs one at a time, in the order of submission.

        Arguments that are references arrive as what they refer to; references inside other arguments stay
        references. Raises RunError when the gang is over.
        """
        if self._over:
            raise RunError(f"call {method} cannot be made: {self._over}")
        call = self._actors[rank].call.options(name=f"Rank{rank}.{method}", num_returns=2)
        seconds, value = call.remote(method, *args, **kwargs)
        return self._under_way.add(RemoteTask(rank, method, seconds, value))

    def gather(
        self, handles: Mapping[int, RemoteTask], wanted: Sequence[int], *, patience: Patience | None = None
    ) -> list[Any]:
        """Waits for ``handles``; the results of ``wanted``. What the others gave is not fetched.

        Every call under way is watched, also those not waited for. As soon as one fails, or ``patience`` is
        over, all processes end, and the likely cause is raised: UserError, RunError, or RankLostError
        (:func:`describe_failure`).
        """
        tasks = list(handles.values())
        self._await(tasks, patience)
        late = self._under_way.ranks(tasks)
        if late and patience is not None:
            method = handles[late[0]].method
            hung = GetTimeoutError(patience.told(late, method))
            raise self._fail([FailedCall(rank, method, hung) for rank in late])
        try:
            return ray.get([handles[rank].value for rank in wanted])
        except RayError as lost:  # a rank ended well, and then its node was lost with the result
            error = lost
        raise self._fail([FailedCall(rank, handles[rank].method, error) for rank in wanted[:1]])

    def seconds(self, handles: Mapping[int, RemoteTask]) -> dict[int, float]:
        """Rank -> how long its method took, of calls that were gathered."""
        taken = ray.get([task.seconds for task in handles.values()])
        return dict(zip(handles, taken, strict=True))

    def close(self) -> None:
        """Ends all processes of the ranks, also stopped ones. Raises RunError where one is still there after
        seconds, which no signal ends."""
        if problems := self._end():
            raise RunError("; ".join(problems))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self, *, appends: bool) -> None:
        places = self.placement.map
        resources = {"num_gpus": 1, "num_cpus": 0} if places.device == "cuda" else {"num_cpus": 1}
        for place in places.places:
            start = RankStart(
                place,
                world_size=places.layout.world_size,
                folder=f"{self.placement.folders[place.node.node_id]}/{self._name}",
                log_folder=str(self._log_folder),
                working_folder=os.getcwd(),
                appends=appends,
            )
            strategy = self.placement.strategy(place.rank)
            self._actors[place.rank] = make_actor(
                rank_class(place.rank), start, scheduling_strategy=strategy, **resources
            )

    def _open_store(self, ports: range | None) -> ObjectRef[Rendezvous]:
        """On this node: a store on a rank's would be lost with it."""
        store = make_actor(StoreHost, num_cpus=0, scheduling_strategy=on_this_node())
        self._store.append(store)
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        opened: ObjectRef[Rendezvous] = store.open.remote(address, self._name, ports=ports)
        return opened

    def _build(self, payload: bytes, store: ObjectRef[Rendezvous] | None, *, patience_s: float) -> None:
        """Imports on all ranks while the store opens."""
        shared = ray.put(payload)
        tasks = []
        for rank, actor in self._actors.items():
            for method, argument in (("prepare", shared), ("build", store)):
                call = getattr(actor, method).options(name=f"Rank{rank}.{method}", num_returns=2)
                seconds, value = call.remote(argument)
                tasks.append(self._under_way.add(RemoteTask(rank, method, seconds, value)))
        self._await(tasks, Patience(patience_s))
        if late := sorted(set(self._under_way.ranks(tasks))):
            raise RunError(
                f"{len(late)} of {len(self._actors)} ranks are not up after {patience_s:g} s: "
                f"{stretches_text(late)}; their logs: {self._log_folder}"
            )

    def _await(self, tasks: Sequence[RemoteTask], patience: Patience | None) -> None:
        if self._over:
            raise RunError(self._over)
        if failed := self._under_way.wait(tasks, patience):
            raise self._fail(failed)

    def _fail(self, failed: Sequence[FailedCall]) -> RankloomError:
        """Ends the gang; the error to raise."""
        ends, silent = self._ends([call.rank for call in failed])
        lost = {node.node_id for node in self.placement.lost_nodes()} | silent
        error = describe_failure(failed, ends, sorted(lost), self.placement.map)
        self._over = f"the gang is over since {str(error).splitlines()[0]}"
        if problems := self._end():
            error.args = ("\n".join([str(error), *problems]),)
        return error

    def _ends(self, failed: Sequence[int]) -> tuple[dict[int, RankEnd], set[str]]:
        """What ranks left, and the nodes with failed ranks whose keeper is gone too, or does not answer."""
        asked: dict[ObjectRef[list[RankEnd]], str] = {}
        for node in self.placement.map.nodes:
            ranks = [place.rank for place in self.placement.map.places if place.node == node]
            keeper = self.placement.keepers[node.node_id]
            asked[keeper.ends.remote(self._name, str(self._log_folder), ranks, with_log=list(failed))] = (
                node.node_id
            )
        answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=_ENDS_PATIENCE_S)
        hit = {self.placement.map.of(rank).node.node_id for rank in failed}
        silent = {asked[reference] for reference in late} & hit
        ends: dict[int, RankEnd] = {}
        for reference in answered:
            try:
                ends.update({end.rank: end for end in ray.get(reference)})
            except RayTaskError:
                raise
            except RayError:  # the keeper went with its node
                silent.add(asked[reference])
        return ends, silent

    def _end(self) -> list[str]:
        """What could not be ended, in words."""
        with interrupts_ignored():
            if self._closed or not ray.is_initialized():
                return []
            self._closed, self._over = True, self._over or "the gang was closed"
            self._under_way.clear()
            for actor in (*self._actors.values(), *self._store):
                ray.kill(actor)
            return self._end_processes()

    def _end_processes(self) -> list[str]:
        keepers = self.placement.keepers
        asked: dict[ObjectRef[list[int]], str] = {
            keepers[node.node_id].end_ranks.remote(self._name, patience_s=_END_PATIENCE_S): node.name
            for node in self.placement.map.nodes
        }
        answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=2 * _END_PATIENCE_S)
        problems = [
            f"node {asked[reference]} does not answer: ranks may still run there" for reference in late
        ]
        for reference in answered:
            try:
                left = ray.get(reference)
            except RayTaskError:
                raise
            except RayError:  # the keeper went with its node, and so did the ranks there
                continue
            if left:
                problems.append(f"processes {left} on node {asked[reference]} cannot be ended")
        return problems


def _is_small(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return len(value) <= _MOST_SMALL_BYTES
    return isinstance(value, _SMALL_TYPES)


def _pickled(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data
