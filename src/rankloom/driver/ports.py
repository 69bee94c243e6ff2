"""Where the ranks of a gang meet: a port that is taken before anybody hears of it, and kept to the end.

A port that is looked for, closed and bound again later may be another's by then. Here the socket that was
bound becomes the store's own. The store runs in a process of its own, so that it outlives any rank, and the
watchdogs can still tell of a rank 0 that stopped.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rankloom.errors import RunError
from rankloom.train.torchrun import TorchrunEnvironment

if TYPE_CHECKING:
    from torch.distributed import TCPStore

__all__ = ["Rendezvous", "StoreHost", "interface_of", "listening_socket"]

_STORE_TIMEOUT = timedelta(minutes=5)
_BACKLOG = 4096


@dataclass(frozen=True)
class Rendezvous:
    """A store that runs: TCP, at ``address``:``port``. ``run`` differs between gangs."""

    address: str
    port: int
    run: str

    def environment(self, rank: int, *, world_size: int) -> TorchrunEnvironment:
        """As torchrun would tell a rank; its ``connect`` gives a watchdog a store.

        ``local_rank`` is 0: of the GPUs Ray shows a rank its own alone.
        """
        return TorchrunEnvironment(
            rank=rank,
            local_rank=0,
            world_size=world_size,
            master_addr=self.address,
            master_port=self.port,
            run=self.run,
        )

    def variables(self, rank: int, *, world_size: int) -> Mapping[str, str]:
        """What ``init_process_group(init_method="env://")`` reads: join the store, host none."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


class StoreHost:
    """The process that keeps the store of one gang; made an actor by the gang."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None

    def open(self, address: str, run: str, *, ports: range | None = None) -> Rendezvous:
        """Starts the store on this node's ``address``. Raises RunError where no port is free."""
        from torch.distributed import TCPStore

        listening = listening_socket(address, ports=ports)
        port = int(listening.getsockname()[1])
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=_STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),  # the store closes it
        )
        return Rendezvous(address, port, run)


def listening_socket(address: str, *, ports: range | None = None) -> socket.socket:
    """A socket that listens on ``address`` alone, on the first free one of ``ports`` or, without any, on a
    port that the system chooses.

    Raises RunError where another process has every one of them.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports if ports is not None else (0,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.bind((address, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise RunError(f"cannot listen on {address}, port {port}: {error}") from error
            continue
        return listening
    assert ports is not None
    raise RunError(
        f"none of the ports {ports.start} to {ports.stop - 1} is free on {address}: each is another process's"
    )


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has an IPv4 address; None where none has it, or nobody
    says."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    get_address = 0x8915  # SIOCGIFADDR of Linux
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            try:
                answer = fcntl.ioctl(asking.fileno(), get_address, request)
            except OSError:  # it has no IPv4 address, or this is not Linux
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
