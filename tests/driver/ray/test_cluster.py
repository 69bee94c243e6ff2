"""The cluster that the driver starts, and the ones that it is told to join."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankloom.driver.cluster import join_ray, ray_cluster
from rankloom.driver.connection import RayCluster
from rankloom.driver.local_cluster import start_ray
from rankloom.errors import UserError
from tests.driver.ray.conftest import NUM_CPUS
from tests.train.processes import Launch

JOIN = """
import sys
from rankloom.driver.cluster import join_ray
from rankloom.errors import UserError
try:
    with join_ray(sys.argv[1]) as cluster:
        print(cluster.describe())
except UserError as error:
    print("refused:", error)
"""


def joined(address: str, **variables: str) -> str:
    """What a process of its own says of the cluster at an address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_says_what_was_started(cluster: RayCluster) -> None:
    text = rf"Ray \S+: started a cluster on this machine at {re.escape(cluster.address)} \(loopback only, a "
    assert re.fullmatch(text + rf"token of its own\): {NUM_CPUS} logical CPUs, 0 GPUs", cluster.describe())
    (node,) = cluster.nodes()
    assert (node.address, node.num_cpus, node.num_gpus, node.is_head) == ("127.0.0.1", NUM_CPUS, 0, True)
    assert cluster.nodes(without=[node.node_id]) == ()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_of_it_listens_on_another_interface_than_loopback(cluster: RayCluster) -> None:
    sockets = set()
    for folder in _descendants(os.getpid()):
        for link in (folder / "fd").iterdir():
            try:
                sockets.add(str(link.readlink()))
            except FileNotFoundError:
                continue
    own = [address for address, inode in _listening() if f"socket:[{inode}]" in sockets]
    assert len(own) >= 4  # Ray's control service, two of its daemon, and one of this process
    assert set(own) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_the_token_is_where_only_this_user_can_read_it(cluster: RayCluster) -> None:
    file = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert not file.is_relative_to(Path.home())
    assert len(file.read_text()) == 64


@pytest.mark.long
def test_who_has_not_the_token_cannot_join(cluster: RayCluster) -> None:
    refused = joined(cluster.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert refused.startswith(f"refused: the Ray cluster at {cluster.address} asks for a token")
    file = os.environ["RAY_AUTH_TOKEN_PATH"]
    text = joined(cluster.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=file)
    assert f"joined the cluster at {cluster.address}: 1 node, {NUM_CPUS} CPUs, 0 GPUs\n" in text
    assert Path(file).read_text() not in refused + text


@pytest.mark.long
def test_of_a_cluster_that_was_started_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one of the same process has another token."""
    for name in ("RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    launched = Launch(module="tests.driver.ray.starts")
    code, out, err = launched.end()
    assert (code, err, launched.left()) == (0, "", [])
    folders = [Path(line) for line in out.splitlines()]
    assert len(set(folders)) == 2
    assert not any(folder.exists() for folder in folders)


def test_a_process_that_is_connected_stays_so(cluster: RayCluster) -> None:
    with ray_cluster(num_ranks=2, device="cpu", address="nowhere:1") as found:
        text = f"connected already to the cluster at {cluster.address}: 1 node, {NUM_CPUS} CPUs, 0 GPUs\n"
        assert text in found.describe()
    assert cluster.nodes()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def refusal(address: str) -> str:
    with pytest.raises(UserError) as caught, join_ray(address):
        raise AssertionError
    return str(caught.value)


def test_an_address_where_nothing_listens_is_refused_at_once(closed_port: int) -> None:
    since = time.monotonic()
    message = refusal(f"127.0.0.1:{closed_port}")
    assert re.match(rf"no Ray cluster answers at \S+:{closed_port}: .*refused; ray status on its", message)
    assert time.monotonic() - since < 30


def test_an_address_where_something_else_listens_is_refused() -> None:
    """Ray itself would wait for it without end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for sent in _answers(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            assert "what listens there is no Ray" in refusal(f"{sent}:{port}")


def _answers(server: socket.socket, answer: bytes) -> Iterator[str]:
    """Has whoever connects while the caller works answered with these bytes; gives the host once."""
    import threading

    def serve() -> None:
        while True:
            try:
                asking, _ = server.accept()
            except OSError:
                return
            with asking:
                asking.recv(100)
                asking.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[0]


@pytest.mark.parametrize("address", ["head", "head:port", "head:1:2", ":6379", "head:6379/x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert "is no address of a Ray cluster; give host:port" in refusal(address)


def test_the_address_of_a_client_server_is_refused() -> None:
    assert "the address of a Ray client server; run this command on a node" in refusal("ray://head:10001")


def test_an_object_store_that_is_too_small_is_refused() -> None:
    with (
        pytest.raises(UserError, match="give it 78643200 or more"),
        start_ray(num_ranks=1, object_store_bytes=2**20),
    ):
        raise AssertionError


def _descendants(process_id: int) -> list[Path]:
    """The /proc folders of a process and of all that come from it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {process_id}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return [Path(f"/proc/{pid}") for pid in found if Path(f"/proc/{pid}/fd").exists()]


def _listening() -> list[tuple[str, str]]:
    """Address, in the kernel's spelling, and inode of every socket that listens."""
    rows = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                rows.append((fields[1].split(":")[0], fields[9]))
    return rows
