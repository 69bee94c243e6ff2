"""The Ray cluster of a run: one that is there already is joined, else one is started on this machine."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import AuthenticationError

from rankloom.driver.connection import RayCluster, loopback_addresses, shut_down_quietly
from rankloom.driver.local_cluster import DEFAULT_OBJECT_STORE_BYTES, start_ray
from rankloom.driver.signals import handlers_kept
from rankloom.errors import UserError

__all__ = ["join_ray", "ray_cluster"]

_REACH_PATIENCE_S = 5.0
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):[0-9]{1,5}")
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4


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
    as_it_is = _refuse_unreachable(address)
    with shut_down_quietly():
        with handlers_kept(), as_it_is:
            _connect(address)
        yield RayCluster(ray.get_runtime_context().gcs_address, "joined")


def _connect(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, AuthenticationError) as error:
        if _says_of_token(error):
            raise UserError(
                f"the Ray cluster at {address} asks for a token, and this process has none or another one; "
                "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds the cluster's"
            ) from error
        # another version of Ray or Python there, for one
        raise UserError(f"the Ray cluster at {address} cannot be joined: {error}") from error


def _says_of_token(error: BaseException | None) -> bool:
    """Whether a refused token is behind an error: Ray makes a connection error of it."""
    while error is not None:
        if isinstance(error, AuthenticationError) or AuthenticationError.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refuse_unreachable(address: str) -> AbstractContextManager[None]:
    """Raises UserError unless Ray listens at the address that it makes of this one: it would wait for ever.

    Gives the context in which Ray takes the address as it is, where that is needed: of "127.0.0.1" it makes
    the address of the machine, where a cluster that keeps to the loopback interface does not listen.
    """
    if "://" in address:
        raise UserError(
            f"{address} is the address of a Ray client server; run this command on a node of the cluster, "
            "and give host:port of its head node, or auto"
        )
    if address != "auto" and not _ADDRESS.fullmatch(address):
        raise UserError(
            f"{address!r} is no address of a Ray cluster; give host:port of its head node, or auto"
        )
    made = canonicalize_bootstrap_address(address)
    problem = _no_answer(made) if made is not None else ""  # None: auto, and Ray will look for processes
    if not problem:
        return nullcontext()
    if address != "auto" and not _no_answer(address):
        return loopback_addresses()
    raise UserError(
        f"no Ray cluster answers at {made}: {problem}; ray status on its head node shows whether it runs. "
        "Without RAY_ADDRESS a cluster is started on this machine"
    )


def _no_answer(address: str) -> str:
    """Why this is not the address of a cluster; "" where it may be one: what answers there speaks HTTP/2, as
    gRPC does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_PATIENCE_S) as asking:
            if os.environ.get("RAY_USE_TLS") == "1":
                return ""
            asking.sendall(_HTTP2_GREETING)
            answer = asking.recv(9)
    except (OSError, OverflowError) as error:
        return str(error)
    return "" if len(answer) > 3 and answer[3] == _SETTINGS_FRAME else "what listens there is no Ray"
