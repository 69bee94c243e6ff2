"""The Ray cluster of a run: one that is there already is joined, else one is started on this machine."""

from __future__ import annotations

import ipaddress
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from rankloom.driver.nodes import Node
from rankloom.driver.remote import alive_nodes
from rankloom.driver.signals import handlers_kept, interrupts_ignored, interrupts_put_off
from rankloom.driver.token import private_token
from rankloom.errors import RunError, UserError

__all__ = ["DEFAULT_OBJECT_STORE_BYTES", "RayCluster", "join_ray", "ray_cluster", "start_ray"]

DEFAULT_OBJECT_STORE_BYTES = 256 * 2**20
_LEAST_OBJECT_STORE_BYTES = 75 * 2**20  # Ray refuses less
_LOGICAL_CPUS_BESIDE_RANKS = 1  # for tasks of others, such as a dataset's
_REACH_PATIENCE_S = 5.0
_LONGEST_FOLDER = 40  # characters: sockets lie 62 deeper, and their paths end at 107
_MOST_NODES_SHOWN = 16


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster that this process is connected to. ``how`` it came to be: for :meth:`describe`."""

    address: str
    how: Literal["started", "joined", "connected already"]
    token: bool = False

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive now."""
        return tuple(_node_of(row) for row in alive_nodes())

    def describe(self) -> str:
        """Which cluster this is, in a line, and a line for each node."""
        nodes = self.nodes()
        cpus, gpus = sum(node.num_cpus for node in nodes), sum(node.num_gpus for node in nodes)
        counts = f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {cpus} CPUs, {gpus} GPUs"
        if self.how == "started":
            token = "a token of its own" if self.token else "no token"
            return (
                f"Ray {ray.__version__}: started a cluster on this machine at {self.address} (loopback only, "
                f"{token}): {cpus} logical CPUs, {gpus} GPUs"
            )
        verb = {"joined": "joined the cluster", "connected already": "connected already to the cluster"}
        lines = [f"Ray {ray.__version__}: {verb[self.how]} at {self.address}: {counts}"]
        for node in nodes[:_MOST_NODES_SHOWN]:
            head = ", head" if node.is_head else ""
            lines.append(f"  {node.name}: {node.num_cpus} CPUs, {node.num_gpus} GPUs{head}")
        if len(nodes) > _MOST_NODES_SHOWN:
            lines.append(f"  and {len(nodes) - _MOST_NODES_SHOWN} more")
        return "\n".join(lines)


@contextmanager
def ray_cluster(
    *,
    num_ranks: int,
    device: Literal["auto", "cpu", "cuda"],
    address: str | None = None,
    object_store_bytes: int = DEFAULT_OBJECT_STORE_BYTES,
) -> Iterator[RayCluster]:
    """The cluster at ``address`` (what ``RAY_ADDRESS`` or a setting says) or, without one, a new local one.

    A process that is connected already, such as an actor, stays so. See :func:`join_ray` and
    :func:`start_ray`.
    """
    if ray.is_initialized():
        yield RayCluster(ray.get_runtime_context().gcs_address, "connected already")
    elif address:
        with join_ray(address) as cluster:
            yield cluster
    else:
        with start_ray(num_ranks=num_ranks, device=device, object_store_bytes=object_store_bytes) as cluster:
            yield cluster


@contextmanager
def join_ray(address: str) -> Iterator[RayCluster]:
    """Connects to a cluster as a driver; ``address`` is "host:port", or "auto" for the one on this machine.

    Raises UserError where none answers there, within seconds, or where it refuses this process.
    """
    _refuse_unreachable(address)
    try:
        with _raylet_messages_silenced(), _shut_down():
            with handlers_kept(), interrupts_put_off():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            yield RayCluster(ray.get_runtime_context().gcs_address, "joined")
    except ray.exceptions.AuthenticationError as error:
        raise UserError(
            f"the Ray cluster at {address} asks for a token, and this process has none or another one; set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds the cluster's"
        ) from error
    except ConnectionError as error:
        raise UserError(f"no Ray cluster can be joined at {address}: {error}") from error


@contextmanager
def start_ray(
    *,
    num_ranks: int,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    object_store_bytes: int = DEFAULT_OBJECT_STORE_BYTES,
) -> Iterator[RayCluster]:
    """A cluster of this machine alone, with as many logical CPUs as ranks; afterwards no process is left.

    It listens on the loopback interface, asks for a token of its own, and keeps its files in a temporary
    folder, which is removed. Call it in a thread that lives as long as the cluster: its processes end with
    the thread that started them. Raises UserError for an object store that Ray would refuse.
    """
    if object_store_bytes < _LEAST_OBJECT_STORE_BYTES:
        raise UserError(
            f"an object store of {object_store_bytes} bytes is less than Ray takes; "
            f"give it {_LEAST_OBJECT_STORE_BYTES} or more"
        )
    folder = Path(tempfile.mkdtemp(prefix="rankloom-ray-", dir=_short_folder()))
    with _removed(folder), private_token(folder) as token, _raylet_messages_silenced(), _shut_down():
        with handlers_kept(), interrupts_put_off(), _loopback_addresses():
            ray.init(
                address="local",
                num_cpus=num_ranks + _LOGICAL_CPUS_BESIDE_RANKS,
                num_gpus=0 if device == "cpu" else None,  # None: as many as Ray finds
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / "ray"),
                _system_config={"worker_niceness": 0},  # ranks are no background work here
            )
        cluster = RayCluster(ray.get_runtime_context().gcs_address, "started", token=token)
        _refuse_open_addresses(cluster)
        yield cluster


def _node_of(row: dict[str, Any]) -> Node:
    resources = row["Resources"]
    return Node(
        node_id=row["NodeID"],
        address=row["NodeManagerAddress"],
        hostname=row["NodeManagerHostname"],
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        is_head="node:__internal_head__" in resources,
        labels=dict(row["Labels"]),
    )


def _refuse_unreachable(address: str) -> None:
    if "://" in address:
        raise UserError(
            f"{address} is the address of a Ray client server; run this command on a node of the cluster, "
            "and give host:port of its head node, or auto"
        )
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise UserError(
            f"{address!r} is no address of a Ray cluster; give host:port of its head node, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {error}; ray status on its head node shows whether it "
            "runs. Without RAY_ADDRESS a cluster is started on this machine"
        ) from error


@contextmanager
def _loopback_addresses() -> Iterator[None]:
    """Ray's way of macOS: the machine's address is that of the loopback interface, and so nothing listens on
    others. There is no setting for it."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _refuse_open_addresses(cluster: RayCluster) -> None:
    for node in cluster.nodes():
        if not ipaddress.ip_address(node.address).is_loopback:
            raise RunError(
                f"Ray {ray.__version__} listens on {node.address} although it was told to keep to the "
                "loopback interface; start a cluster by hand (ray start --head) and set RAY_ADDRESS"
            )


@contextmanager
def _shut_down() -> Iterator[None]:
    try:
        yield
    finally:
        with interrupts_ignored():
            ray.shutdown()


@contextmanager
def _raylet_messages_silenced() -> Iterator[None]:
    """Ray would print to stdout, for each rank that ends, everything it may have died of; the last of it when
    it is shut down. There is no setting for it; Ray's own debugger does the same."""
    from ray._private import worker

    before = worker._worker_logs_enabled
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a process that is ending may still write there


def _short_folder() -> str:
    """Where temporary files go, unless the paths of Ray's sockets would be too long there."""
    for folder in (tempfile.gettempdir(), "/tmp"):
        if len(f"{folder}/rankloom-ray-12345678/ray") <= _LONGEST_FOLDER and Path(folder).is_dir():
            return folder
    raise UserError(
        f"the folder for temporary files, {tempfile.gettempdir()}, is too long for the sockets of Ray; set "
        "TMPDIR to a shorter one"
    )
