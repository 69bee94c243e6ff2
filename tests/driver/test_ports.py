"""Ports that are bound before anybody hears of them."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace

import pytest

from rankloom.driver.ports import Rendezvous, interface_of, listening_socket
from rankloom.errors import RunError
from rankloom.train import TorchrunEnvironment

LOOPBACK = "127.0.0.1"


def stretch_of_free_ports() -> range:
    """Two neighbours that are free now."""
    for _ in range(100):
        with listening_socket(LOOPBACK) as first, socket.socket() as second:
            port = first.getsockname()[1]
            try:
                second.bind((LOOPBACK, port + 1))
            except OSError:
                continue
            return range(port, port + 2)
    raise AssertionError("no two neighbouring ports are free")


def test_two_sockets_get_different_ports() -> None:
    with listening_socket(LOOPBACK) as one, listening_socket(LOOPBACK) as other:
        assert one.getsockname()[1] != other.getsockname()[1]
        assert one.getsockname()[0] == LOOPBACK


def test_a_port_that_another_took_is_passed_over() -> None:
    ports = stretch_of_free_ports()
    with listening_socket(LOOPBACK, ports=ports) as taken, listening_socket(LOOPBACK, ports=ports) as ours:
        assert [taken.getsockname()[1], ours.getsockname()[1]] == list(ports)


def test_no_free_port_in_a_stretch() -> None:
    ports = stretch_of_free_ports()
    with listening_socket(LOOPBACK, ports=ports), listening_socket(LOOPBACK, ports=ports):
        expected = f"none of the ports {ports[0]} to {ports[1]} is free on 127.0.0.1"
        with pytest.raises(RunError, match=expected):
            listening_socket(LOOPBACK, ports=ports)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(RunError, match=r"cannot listen on 192\.0\.2\.77, port 0"):
        listening_socket("192.0.2.77")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel in Linux's way")
def test_the_interface_of_an_address() -> None:
    assert interface_of(LOOPBACK) == "lo"
    assert interface_of("192.0.2.77") is None


def test_what_a_rank_is_told_is_what_torchrun_tells() -> None:
    rendezvous = Rendezvous("10.0.0.1", 4711, "job")
    environment = rendezvous.environment(3, world_size=8)
    assert (environment.rank, environment.world_size, environment.local_rank) == (3, 8, 0)
    read = TorchrunEnvironment.read(rendezvous.variables(3, world_size=8))
    assert read is not None
    assert environment == replace(read, run="job")
