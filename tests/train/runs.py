"""Stand-ins for a training run, one function a kind of ending, and the config they run under."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankloom.config import ResolvedConfig, resolve
from rankloom.errors import UserError

NUM_STEPS = 3


def config(folder: Path, *, world_size: int = 4, **settings: object) -> ResolvedConfig:
    """TP 2; four ranks are TP 2 x GTP_remat 2: rank 3 is tp 1, gtp_batch 1."""
    return resolve(mapping(folder, world_size=world_size), cli=dict(settings))


def mapping(folder: Path, *, world_size: int | None = 4) -> dict[str, dict[str, object]]:
    model = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 512,
    }
    shards = world_size or 4
    cluster = {"world_size": world_size} if world_size else {}
    return {
        "model": {"config": model},
        "parallel": {"tensor_model_parallel_size": 2, "tensor_parallel_num_weight_shards": shards},
        "data": {"train": "python-docs"},
        "train": {"global_batch_size": 4, "max_steps": NUM_STEPS},
        "checkpoint": {"dir": str(folder / "run")},
        "cluster": cluster,
    }


def metrics(step: int) -> dict[str, object]:
    return {
        "step": step,
        "loss": 4.0 / step,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "consumed_samples": 4 * step,
        "consumed_chats": 5 * step,
        "consumed_tokens": 100 * step,
        "valid_tokens": 60,
        "step_time_s": 0.1,
        "tokens_per_second": 1234.5,
        "comm_bytes": {"tp": 8},
        "epoch": step / 2,
        "global_batch_size": 4,
        "padding": 0.25,
        "lane_imbalance": 1.5,
        "lane_token_imbalance": 1.2,
        "loader_wait_s": 0.001,
        "eval_loss": None,
        "eval_tokens": None,
    }


def join(rank: int, world_size: int, init_method: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world_size


def meet(activity: Any, group: str = "world") -> None:
    """A barrier, told to the watchdog."""
    import torch.distributed as dist

    seq = activity.launched(group, "barrier")
    with activity.waiting(group, "barrier", seq):
        dist.barrier()


def well(
    resolved: Any, *, rank: int, world_size: int, init_method: str, reporter: Any, **_: Any
) -> Mapping[str, object]:
    """A run in which all is well."""
    import torch

    started = time.monotonic()
    join(rank, world_size, init_method)
    reporter.phase("join the others", time.monotonic() - started)
    reporter.note(f"{torch.get_num_threads()} thread a rank")
    reporter.start(max_steps=NUM_STEPS, first_step=1)
    for step in range(1, NUM_STEPS + 1):
        reporter.step(metrics(step))
    print(f"a word from rank {rank}")
    return {
        "steps": NUM_STEPS,
        "loss_first": 4.0,
        "loss_last": 4.0 / NUM_STEPS,
        "consumed_samples": 12,
        "consumed_chats": 15,
        "consumed_tokens": 300,
        "time_s": 0.3,
        "model": "run/model",
        "metrics": "run/metrics.jsonl",
    }


def raise_on_last_rank(
    resolved: Any, *, rank: int, world_size: int, init_method: str, activity: Any, **_: Any
) -> None:
    join(rank, world_size, init_method)
    activity.phase = "step 3: forward, microbatch 1"
    if rank == world_size - 1:
        print("the last words", file=sys.stderr)
        raise ValueError("a bad number")
    meet(activity)


def die_on_rank_3(
    resolved: Any, *, rank: int, world_size: int, init_method: str, activity: Any, **_: Any
) -> None:
    join(rank, world_size, init_method)
    activity.phase = "step 2: backward, microbatch 0"
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    meet(activity)


def exit_on_rank_1(
    resolved: Any, *, rank: int, world_size: int, init_method: str, activity: Any, **_: Any
) -> None:
    join(rank, world_size, init_method)
    if rank == 1:
        os._exit(7)
    meet(activity)


def refuse_on_all(resolved: Any, **_: Any) -> None:
    raise UserError("chats.jsonl, line 3: not valid JSON")


def hang_on_last_rank(
    resolved: Any, *, rank: int, world_size: int, init_method: str, activity: Any, **_: Any
) -> None:
    join(rank, world_size, init_method)
    activity.phase = "step 4: forward, microbatch 0"
    if rank == world_size - 1:
        read_forever()
    meet(activity)


def read_forever() -> None:
    time.sleep(60)


def stop_on_rank_2(
    resolved: Any, *, rank: int, world_size: int, init_method: str, activity: Any, **_: Any
) -> None:
    join(rank, world_size, init_method)
    if rank == 2:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
    meet(activity)


def sleep_well(
    resolved: Any, *, rank: int, world_size: int, init_method: str, reporter: Any, **_: Any
) -> None:
    """Says which processes there are, then does nothing for long."""
    join(rank, world_size, init_method)
    Path(resolved.checkpoint.dir, f"pid-{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    reporter.note("asleep")
    time.sleep(60)


def connect_only(
    resolved: Any, *, rank: int, local_rank: int, init_method: str, activity: Any, **_: Any
) -> None:
    """The real start of a rank, up to its process groups."""
    from rankloom.train.assemble import connect

    connect(resolved, rank=rank, local_rank=local_rank, init_method=init_method, activity=activity)
