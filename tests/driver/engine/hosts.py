"""Hosts of this machine: each has a network, a host name and mounts of its own, and a Ray node. Needs root.

The head node is on this host, without room for ranks, in a network that it shares with the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.train.processes import ROOT, until

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PORT = 6390
STORE_BYTES = 100 * 2**20


def cannot_be_made() -> str:
    """Why there can be no such hosts here; "" where they can be made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "networks and mounts of their own need root, on Linux"
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "-n", "-m", "-u", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip()


class Hosts:
    """``names``: of the hosts, which have addresses <network>.2, .3, ...; ``address``: of the cluster."""

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self.names = names
        self._tag = f"rl{os.getpid() % 100_000}"  # an interface's name has 15 characters at most
        self._network = f"10.77.{os.getpid() % 250}"
        self._folder = folder
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"{self._network}.1:{PORT}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "",
            "OMP_NUM_THREADS": "1",
        }

    def address_of(self, name: str) -> str:
        return f"{self._network}.{2 + self.names.index(name)}"

    @contextmanager
    def networks(self) -> Iterator[None]:
        """A bridge, and a pair of interfaces for each host."""
        bridge = f"{self._tag}b"
        with ExitStack() as undo:
            _ip("link", "add", bridge, "type", "bridge")
            undo.callback(_ip, "link", "del", bridge)
            _ip("addr", "add", f"{self._network}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for name in self.names:
                own, cable = self._namespace(name), self._cable(name)
                _ip("netns", "add", own)
                undo.callback(_ip, "netns", "del", own)
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", own)
                _ip("link", "set", cable, "master", bridge)
                _ip("link", "set", cable, "up")
                _ip("-n", own, "addr", "add", f"{self.address_of(name)}/24", "dev", "eth0")
                _ip("-n", own, "link", "set", "eth0", "up")
                _ip("-n", own, "link", "set", "lo", "up")
            yield

    def pull_cable(self, name: str) -> None:
        """Its processes go on, and nobody hears of them."""
        _ip("link", "set", self._cable(name), "down")

    @contextmanager
    def head(self) -> Iterator[None]:
        host = self.address.partition(":")[0]
        start = [
            *(*RAY, "start", "--head", "--block", f"--node-ip-address={host}", f"--port={PORT}"),
            *("--num-cpus=0", "--include-dashboard=false", f"--object-store-memory={STORE_BYTES}"),
            f"--temp-dir={self._folder}",
        ]
        with self._process("head", start):
            until(lambda: "Ray runtime started" in self._log("head"))
            yield

    @contextmanager
    def node(self, name: str, *, num_cpus: int, hidden: Path | None = None) -> Iterator[None]:
        """A node on a host; ``hidden``: a folder that is empty there."""
        ray = [
            *(*RAY, "start", "--block", f"--address={self.address}", f"--num-cpus={num_cpus}"),
            *(f"--node-ip-address={self.address_of(name)}", f"--object-store-memory={STORE_BYTES}"),
        ]
        mount = f"mount -t tmpfs none {hidden} && " if hidden else ""
        inside = f"hostname {name} && {mount}exec {' '.join(ray)}"
        start = ["ip", "netns", "exec", self._namespace(name), "unshare", "-m", "-u", "bash", "-c", inside]
        with self._process(name, start):
            until(lambda: "Ray runtime started" in self._log(name))
            yield

    @contextmanager
    def _process(self, name: str, command: list[str]) -> Iterator[None]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._tag}c{self.names.index(name)}"


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Their networks, and the head node."""
    with tempfile.TemporaryDirectory(prefix="rl-") as folder:  # short: sockets lie in it
        made = Hosts(names, Path(folder))
        with made.networks(), made.head():
            yield made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
