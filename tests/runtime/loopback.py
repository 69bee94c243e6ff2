"""Run as a program in a network namespace of its own: exchanges among four ranks, counted by the groups that
send and by the loopback interface. Prints both numbers of bytes as JSON."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout

RANKS, NUMEL, TIMES = 4, 250_000, 40


def raise_loopback() -> None:
    """A new namespace has a loopback interface that is down."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        reply = fcntl.ioctl(control, get_flags, name + bytes(16))
        flags = struct.unpack("16xh", reply[:18])[0]
        fcntl.ioctl(control, set_flags, name + struct.pack("h14x", flags | up))


def loopback_bytes() -> int:
    """Bytes sent over the loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[8])
    raise RuntimeError("no loopback interface")


def exchange(rank: int, store: str, results: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    layout = GTPParallelLayout.resolve(world_size=RANKS, tensor_parallel_num_weight_shards=RANKS)
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=60)
    group = comm["gtp_remat"]
    own, full, total = torch.randn(NUMEL), torch.empty(RANKS * NUMEL), torch.empty(NUMEL)
    dist.barrier()
    before = loopback_bytes()
    dist.barrier()
    for _ in range(TIMES):
        group.all_gather([(full, own)], "gather").wait()
        group.reduce_scatter([(total, full)], "sum").wait()
    dist.barrier()
    results.put((group.bytes_sent, loopback_bytes() - before))  # type: ignore[attr-defined]
    dist.barrier()


def main(store: str) -> None:
    raise_loopback()
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(exchange, (store, results), nprocs=RANKS)
    pairs = [results.get() for _ in range(RANKS)]
    print(json.dumps({"counted": sum(sent for sent, _ in pairs), "seen": max(seen for _, seen in pairs)}))


if __name__ == "__main__":
    main(sys.argv[1])
