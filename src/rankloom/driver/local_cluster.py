"""A Ray cluster of this machine alone, for one run: nobody else can reach it, and nothing of it stays."""

from __future__ import annotations

import ipaddress
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import ray

from rankloom.driver.connection import RayCluster, loopback_addresses, shut_down_quietly
from rankloom.driver.signals import handlers_kept, interrupts_put_off
from rankloom.driver.token import private_token
from rankloom.errors import RunError, UserError

__all__ = ["DEFAULT_OBJECT_STORE_BYTES", "start_ray"]

DEFAULT_OBJECT_STORE_BYTES = 256 * 2**20
_LEAST_OBJECT_STORE_BYTES = 75 * 2**20  # Ray refuses less
_LOGICAL_CPUS_BESIDE_RANKS = 1  # for tasks of others, such as a dataset's
_LONGEST_FOLDER = 40  # characters: sockets lie 62 deeper, and their paths end at 107


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
    with _removed(folder), private_token(folder) as token, shut_down_quietly():
        with handlers_kept(), interrupts_put_off(), loopback_addresses():
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


def _refuse_open_addresses(cluster: RayCluster) -> None:
    for node in cluster.nodes():
        if not ipaddress.ip_address(node.address).is_loopback:
            raise RunError(
                f"Ray {ray.__version__} listens on {node.address} although it was told to keep to the "
                "loopback interface; start a cluster by hand (ray start --head) and set RAY_ADDRESS"
            )


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
