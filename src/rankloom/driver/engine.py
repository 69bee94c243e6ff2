"""The Ray engine: finds or starts a cluster, takes room for the ranks, runs them, and starts them anew when
one is lost.

The controller is this process, on the node where the command was typed, where its files are.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rankloom.config import ResolvedConfig, resolve
from rankloom.driver.actor import WorkerFactory
from rankloom.driver.cluster import ray_cluster
from rankloom.driver.connection import RayCluster
from rankloom.driver.controller import SFTController
from rankloom.driver.faults import RankLostError
from rankloom.driver.gang import Gang
from rankloom.driver.nodes import Device, device_of
from rankloom.driver.placement import Placement
from rankloom.driver.world_sizes import largest_world_size
from rankloom.errors import RunError, UserError
from rankloom.train.reporting import Reporter
from rankloom.train.run_lock import run_lock
from rankloom.train.signals import handler, signals_as_interrupt
from rankloom.train.stopping import STOP_SIGNALS, Deadline, StopFile

__all__ = ["PLACEMENT", "run_ray"]

PLACEMENT = "placement.json"
_QUIET = "RAY_IGNORE_UNHANDLED_ERRORS"
_OBJECT_STORE_BYTES = 256 * 2**20
_STEPS_IN_STORE = 4  # trained on, loaded, being loaded, and not yet let go
_BYTES_PER_TOKEN = 16  # of the four arrays of a batch


def run_ray(
    resolved: ResolvedConfig,
    *,
    reporter: Reporter,
    address: str | None = None,
    factory: WorkerFactory | None = None,
) -> Mapping[str, object]:
    """Trains on ``resolved.layout.world_size`` ranks of the Ray cluster at ``address``, or of one that is
    started on this machine; returns the summary, which has been told to ``reporter``.

    Whatever a rank prints goes to ``<checkpoint.dir>/logs/rank-N.log``, where each rank runs is in
    ``placement.json`` beside the metrics. When this returns or raises, no process of the run is left. Other
    runs are kept out of ``checkpoint.dir``.

    ``factory`` makes the workers, `rankloom.driver.rank.train_worker` unless there is another.

    Raises UserError or RunError for the first rank that failed, with rank, coordinates, method, node and
    reason: after ``cluster.restarts`` new starts where a rank or a node was lost, else at once.
    KeyboardInterrupt as `rankloom.train.local.run_local` does.
    """
    asked = _EndRequest(resolved)
    deadline = Deadline.of(resolved, started=time.time())
    with signals_as_interrupt(), run_lock(resolved), asked.cleared(), _failures_told_once():
        since = time.monotonic()
        with ray_cluster(
            num_ranks=resolved.layout.world_size,
            device=resolved.cluster.device,
            address=address,
            object_store_bytes=max(_OBJECT_STORE_BYTES, _STEPS_IN_STORE * _batch_bytes(resolved)),
        ) as cluster:
            reporter.phase("reach the Ray cluster", time.monotonic() - since)
            reporter.note(cluster.describe())
            with asked.handlers():
                run = _Run(
                    resolved, cluster, reporter, factory or _train_worker, asked=asked, deadline=deadline
                )
                summary = run.to_end()
    reporter.finish(summary)
    return summary


class _Run:
    """The starts of one run, one after the other."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        cluster: RayCluster,
        reporter: Reporter,
        factory: WorkerFactory,
        *,
        asked: _EndRequest,
        deadline: Deadline | None,
    ) -> None:
        self._resolved = resolved
        self._cluster = cluster
        self._reporter = reporter
        self._factory = factory
        self._asked = asked
        self._deadline = deadline
        self._lost_nodes: set[str] = set()
        self._earlier = _steps_saved(resolved)

    def to_end(self) -> Mapping[str, object]:
        resolved = self._resolved
        for restart in range(resolved.cluster.restarts + 1):
            try:
                return self._start(resolved, appends=restart > 0)
            except RankLostError as error:
                if restart == self._resolved.cluster.restarts or self._asked.reason:
                    raise
                self._lost_nodes |= set(error.lost_nodes)
                resolved, reason = self._after(error)
                how = f"restart {restart + 1} of {self._resolved.cluster.restarts}"
                self._reporter.note(f"{error}\n{how}, on {reason}")
        raise AssertionError("unreachable")

    def _start(self, resolved: ResolvedConfig, *, appends: bool) -> Mapping[str, object]:
        self._asked.in_steps = False
        since = time.monotonic()
        with self._placed(resolved) as placement:
            self._reporter.phase("take room for the ranks", time.monotonic() - since)
            self._tell_places(placement)
            placement.refuse_missing(_paths(resolved))
            since = time.monotonic()
            with Gang.start(
                placement,
                self._factory,
                (_with_device(resolved, placement.map.device), self._deadline),
                log_folder=Path(resolved.checkpoint.dir) / "logs",
                appends=appends,
            ) as gang:
                self._reporter.phase("start the ranks", time.monotonic() - since)
                controller = SFTController(
                    resolved,
                    gang,
                    reporter=self._reporter,
                    wish=lambda: self._asked.reason,
                    on_steps=self._asked.begin_steps,
                )
                return controller.run()

    def _placed(self, resolved: ResolvedConfig) -> Placement:
        nodes = self._cluster.nodes(without=self._lost_nodes)
        return Placement.make(
            nodes,
            resolved.layout,
            device=device_of(resolved.cluster.device, nodes),
            where=self._resolved.where("cluster.world_size"),
        )

    def _tell_places(self, placement: Placement) -> None:
        placed = placement.map
        self._reporter.note(placed.table())
        for warning in placed.warnings():
            self._reporter.note(f"warning: {warning}")
        file = Path(str(self._resolved.logging.metrics)).parent / PLACEMENT
        partial = file.with_suffix(".tmp")
        partial.write_text(json.dumps({"device": placed.device, "ranks": placed.to_json()}, indent=1) + "\n")
        partial.replace(file)

    def _after(self, error: RankLostError) -> tuple[ResolvedConfig, str]:
        """The config of the start after a loss, with as many ranks as there is room for, from this run's last
        checkpoint; and why so many. Raises RunError where there is too little room."""
        nodes = self._cluster.nodes(without=self._lost_nodes)
        device = device_of(self._resolved.cluster.device, nodes)
        try:
            found = largest_world_size(
                self._resolved,
                present=sum(node.room(device) for node in nodes),
                min_world_size=self._resolved.cluster.min_world_size,
            )
        except UserError as refused:
            raise RunError(f"{error}\nit is not started anew: {refused}") from error
        changes: dict[str, Any] = {"cluster.world_size": found.world_size}
        if _has_saved(self._resolved, self._earlier):
            changes["checkpoint.resume"] = "auto"
        if all(self._resolved.value(key) == value for key, value in changes.items()):
            return self._resolved, found.reason
        changed = resolve(self._resolved.to_mapping(), cli=changes, origin=self._resolved.origin)
        return changed, found.reason


class _EndRequest:
    """What signals ask for: in the steps of a run that saves, the first lets it end with a checkpoint. Ranks
    in the middle of a step see it as a file; the controller tells them with the next one too."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        self._saves = resolved.checkpoint.saves
        self._file = StopFile.of_run(resolved)
        self.in_steps = False
        self.reason = ""

    def begin_steps(self) -> None:
        self.in_steps = True

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """A driver that was killed may have left its own."""
        self._file.clear()
        try:
            yield
        finally:
            self._file.clear()

    @contextmanager
    def handlers(self) -> Iterator[None]:
        with ExitStack() as handlers:
            for number in STOP_SIGNALS:
                handlers.enter_context(handler(number, self._on_signal))
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not (self.in_steps and self._saves) or self.reason:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
        with suppress(OSError):  # then they are told with the next step
            self._file.ask(self.reason)


@contextmanager
def _failures_told_once() -> Iterator[None]:
    """Ray would print the traceback of every failed call, and the gang tells of the one that matters."""
    before = os.environ.get(_QUIET)
    os.environ[_QUIET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = before


def _train_worker(*args: Any) -> Any:
    """Imports torch where it is called: on the ranks."""
    from rankloom.driver.rank import train_worker

    return train_worker(*args)


def _with_device(resolved: ResolvedConfig, device: Device) -> ResolvedConfig:
    """Ranks that were given no GPU use none, also where they see one."""
    return replace(resolved, cluster=resolved.cluster.model_copy(update={"device": device}))


def _batch_bytes(resolved: ResolvedConfig) -> int:
    return resolved.train.global_batch_size * resolved.data.max_seq_length * _BYTES_PER_TOKEN


def _paths(resolved: ResolvedConfig) -> list[str]:
    """What all nodes have to see: what is there on this one."""
    data = resolved.data
    sources = [data.path, *_sources(data.train), *_sources(data.validation)]
    outputs = [resolved.checkpoint.dir, str(Path(str(resolved.logging.metrics)).parent)]
    named = [path for path in (resolved.model.path, *sources, *outputs) if path is not None]
    return [str(Path(path).resolve()) for path in named if Path(path).exists()]


def _sources(given: Any) -> list[str]:
    """The names in ``data.train`` or ``data.validation``."""
    several = given if isinstance(given, tuple) else () if given is None else (given,)
    return [source if isinstance(source, str) else source.path for source in several]


def _steps_saved(resolved: ResolvedConfig) -> dict[str, int]:
    """Folder of each step in ``checkpoint.dir`` -> when it was written."""
    folders = Path(resolved.checkpoint.dir).glob("step-*")
    return {str(folder): folder.stat().st_mtime_ns for folder in folders}


def _has_saved(resolved: ResolvedConfig, earlier: Mapping[str, int]) -> bool:
    """Whether the last complete checkpoint was not there ``earlier``."""
    from rankloom.checkpoint import complete_checkpoints

    last = [str(folder) for folder in complete_checkpoints(resolved.checkpoint.dir)[:1]]
    written = _steps_saved(resolved)
    return any(earlier.get(folder) != written.get(folder) for folder in last)
