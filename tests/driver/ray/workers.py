"""Stand-ins for the training worker: small ones, and ones that meet through torch.distributed."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from rankloom.driver.actor import RankContext
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout


class Small:
    """No torch: starts in the time of a Python process."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        context.on_phase("start-up: built")
        print(f"rank {context.rank} is there")

    def process_id(self) -> int:
        return os.getpid()

    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def working_folder(self) -> str:
        return os.getcwd()

    def place(self) -> Any:
        return self.context.place

    def types(self, *args: object, **kwargs: object) -> tuple[list[str], dict[str, str]]:
        return [type(a).__name__ for a in args], {k: type(v).__name__ for k, v in kwargs.items()}

    def add(self, number: int, other: int = 0) -> int:
        return self.context.rank + number + other

    def nap(self, seconds: float) -> int:
        self.context.on_phase("step 3: forward")
        time.sleep(seconds)
        return self.context.rank

    def fail(self, message: str = "a bad thing") -> None:
        self.context.on_phase("step 4: backward")
        print("about to fail")
        raise ValueError(message)

    def lose_peer(self, seconds: float) -> None:
        """What gloo says on the neighbours of a rank that died."""
        time.sleep(seconds)
        raise RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234")

    def refuse(self) -> None:
        raise UserError("data.train names no file")

    def leave(self) -> None:
        sys.exit(3)

    def raise_odd(self) -> None:
        class Odd(BaseException):
            """Like torch's CheckpointException; and its class cannot be found where it is unpickled."""

            def __reduce__(self) -> Any:
                raise TypeError("cannot be pickled")

        raise Odd("odd")

    def print_lines(self, number: int) -> None:
        for line in range(number):
            print(f"line {line}")
        os.write(2, b"from C\n")


class Meeting(Small):
    """Joins the others by gloo, with a watchdog as real runs have."""

    def __init__(self, context: RankContext, layout: GTPParallelLayout, timeout_s: float) -> None:
        super().__init__(context)
        import torch.distributed as dist

        from rankloom.comm import Activity
        from rankloom.comm.watchdog import Watchdog

        self.activity = Activity(on_phase=context.on_phase)
        dist.init_process_group(
            "gloo", init_method="env://", rank=context.rank, world_size=context.world_size
        )
        self.watchdog = Watchdog(
            self.activity,
            lambda: context.environment.connect(timeout_s=1.0),
            layout,
            rank=context.rank,
            timeout_s=timeout_s,
            on_failure=context.on_hang,
        )
        self.watchdog.start()

    def sum(self, value: float) -> float:
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([value * (self.context.rank + 1)])
        self.activity.phase = "step 2: sum"
        with self.activity.waiting("world", "all_reduce", self.activity.launched("world", "all_reduce")):
            dist.all_reduce(tensor)
        return float(tensor.item())

    def store(self) -> tuple[str | None, str | None]:
        return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")

    def threads(self) -> tuple[str, int]:
        import torch

        return threading.current_thread().name, torch.get_num_threads()


def small(context: RankContext) -> Small:
    return Small(context)


def meeting(context: RankContext, layout: GTPParallelLayout, timeout_s: float = 60.0) -> Meeting:
    return Meeting(context, layout, timeout_s)


def fails_on_rank_1(context: RankContext) -> Small:
    if context.rank == 1:
        raise ValueError("no worker here")
    return Small(context)
