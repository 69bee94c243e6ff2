"""One optimizer step of rankloom against stock FSDP2 with hybrid sharding, on the same model, batch and
ranks.

    python benchmarks/train_step.py [--json FILE] [--profile]

4 ranks on gloo, weights cut over 2 and copied 2 times (W 2, two replicas; FSDP2 on a 2 x 2 mesh), one thread
a rank. Step times alternate between the two in one run; memory is measured with each of them alone. Bytes are
those of the loopback interface for both, so that neither is judged by its own count."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from rankloom.comm import Activity, Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.models import Rows, SeededParameters, ShardedModel, fill
from rankloom.optim import ShardedAdamW
from rankloom.plan import ModelPlan, ModelSpec

RANKS = 4
MODEL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
ROWS, LENGTH = 2, 256
LR, CLIP = 3e-4, 1.0


@dataclass
class Side:
    """One of the two programs: ``step(microbatches)`` runs an optimizer step and returns its loss."""

    name: str
    step: Callable[[list[torch.Tensor]], float]


def config() -> LlamaConfig:
    return LlamaConfig(**{k: v for k, v in MODEL.items() if k != "model_type"})


def rankloom_side(rank: int, activity: Activity | None = None) -> Side:
    layout = GTPParallelLayout.resolve(world_size=RANKS, tensor_parallel_num_weight_shards=2)
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=120, activity=activity)
    model = ShardedModel(
        ModelPlan.build(ModelSpec.from_config(MODEL), layout), config(), comm, dtype=torch.float32
    )
    fill(model, SeededParameters(0, std=0.02))
    optimizer = ShardedAdamW(
        model.units,
        model.small,
        comm,
        decays=lambda p: p.sharded,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
        clip_grad=CLIP,
    )
    model.reducer.on_complete = optimizer.launch_reduction

    def step(microbatches: list[torch.Tensor]) -> float:
        sums = torch.zeros(2, dtype=torch.float64)
        for i, ids in enumerate(microbatches):
            last = i == len(microbatches) - 1
            loss, tokens = model.forward_backward(whole_rows(ids), first=i == 0, last=last)
            sums += torch.stack([loss, tokens.double()])
        total = comm["gtp_remat_replica"].sum_small(sums, "loss")
        optimizer.finish_reductions()
        norm = optimizer.gradient_norm(int(total[1]))
        optimizer.step(lr=LR, num_tokens=int(total[1]), norm=norm)
        return float(total[0] / total[1])

    return Side("rankloom", step)


def whole_rows(ids: torch.Tensor) -> Rows:
    """Each row one document, every token trained."""
    labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], dim=1)
    return Rows(ids, labels, torch.arange(LENGTH).expand_as(ids), torch.zeros_like(ids))


def fsdp_side(rank: int) -> Side:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config(), attn_implementation="sdpa")
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=LR,
        betas=(0.9, 0.95),
        fused=True,
    )

    def step(microbatches: list[torch.Tensor]) -> float:
        total = 0.0
        for i, ids in enumerate(microbatches):
            model.set_requires_all_reduce(i == len(microbatches) - 1)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / len(microbatches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Side("FSDP2 HSDP", step)


SIDES = {"rankloom": rankloom_side, "FSDP2 HSDP": fsdp_side}


def batch(rank: int, step: int, microbatches: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    shape = (ROWS, LENGTH)
    return [torch.randint(0, MODEL["vocab_size"], shape, generator=generator) for _ in range(microbatches)]


def loopback_bytes() -> int:
    """Bytes sent over the loopback interface so far, by everybody on this machine."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[8])
    raise RuntimeError("no loopback interface")


def resident_bytes(field: str) -> int:
    """VmRSS or VmHWM (the peak) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field}")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def timed(rank: int, sides: list[Side], microbatches: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians over ``repeats`` alternating steps, after two of each for warming up."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    sent: dict[str, list[int]] = {side.name: [] for side in sides}
    for repeat in range(repeats + 2):
        for side in sides if repeat % 2 else sides[::-1]:
            data = batch(rank, repeat, microbatches)
            dist.barrier()
            before, start = loopback_bytes(), time.perf_counter()
            side.step(data)
            dist.barrier()
            if repeat >= 2:
                times[side.name].append(time.perf_counter() - start)
                sent[side.name].append(loopback_bytes() - before)
    return {
        side.name: {
            "step_s": statistics.median(times[side.name]),
            "fastest_step_s": min(times[side.name]),
            "sent_mib": statistics.median(sent[side.name]) / 2**20,
        }
        for side in sides
    }


def memory(rank: int, name: str, microbatches: int) -> float:
    """Peak resident MiB of this rank over what it was before the model, during three steps."""
    base = resident_bytes("VmRSS")
    reset_peak()
    side = SIDES[name](rank)
    for step in range(3):
        side.step(batch(rank, step, microbatches))
    return (resident_bytes("VmHWM") - base) / 2**20


class TimedActivity(Activity):
    """Adds up how long this rank blocks, by the kind of collective."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: Counter[str] = Counter()

    @contextmanager
    def waiting(self, group: str, what: str, seq: int) -> Iterator[None]:
        since = time.perf_counter()
        with super().waiting(group, what, seq):
            yield
        self.waited_s[f"{group}: {what.split(' model.')[0].split(' lm_head')[0]}"] += (
            time.perf_counter() - since
        )


def profile(rank: int, microbatches: int) -> str:
    """Where this rank's time goes: blocked in collectives, and in which operations the rest."""
    activity, steps = TimedActivity(), 3
    side = rankloom_side(rank, activity)
    side.step(batch(rank, 0, microbatches))
    activity.waited_s.clear()
    with torch.profiler.profile() as profiler:
        since = time.perf_counter()
        for step in range(1, 1 + steps):
            side.step(batch(rank, step, microbatches))
        whole_s = time.perf_counter() - since
    lines = [f"rank {rank}: {whole_s / steps:.3f} s a step, {microbatches} microbatches; blocked in, s:"]
    lines += [f"  {name:<44} {seconds / steps:.3f}" for name, seconds in activity.waited_s.most_common()]
    table = profiler.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=40
    )
    return "\n".join([*lines, f"operations over {steps} steps:", table])


def run_rank(rank: int, store: str, job: str, args: tuple[Any, ...], queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    if job == "time":
        microbatches, repeats = args
        result: Any = timed(rank, [SIDES[n](rank) for n in SIDES], microbatches, repeats)
    elif job == "memory":
        result = memory(rank, *args)
    else:
        result = profile(rank, *args)
    queue.put((rank, result))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(job: str, *args: Any) -> list[Any]:
    """Results of a job on fresh ranks, in rank order."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = mp.spawn(run_rank, (store, job, args, queue), nprocs=RANKS, join=False)
        results: dict[int, Any] = {}
        while len(results) < RANKS:
            if queue.empty():
                processes.join(timeout=0.2)  # raises what a rank that failed has raised
            else:
                rank, found = queue.get()
                results[rank] = found
        while not processes.join():
            pass
    return [results[rank] for rank in range(RANKS)]


def measure(microbatches: int, repeats: int) -> dict[str, Any]:
    times = on_ranks("time", microbatches, repeats)[0]
    for name in SIDES:
        times[name]["peak_mib"] = max(on_ranks("memory", name, microbatches))
    return {"microbatches": microbatches, **times}


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title=f"{RANKS} ranks, 2 x 2, {ROWS} x {LENGTH} tokens a rank and microbatch")
    for column in ("microbatches", "", "step s", "fastest s", "peak MiB over base", "MiB sent, all ranks"):
        table.add_column(column, justify="left" if not column else "right")
    keys = ("step_s", "fastest_step_s", "peak_mib", "sent_mib")
    for result in results:
        ours, theirs = (result[name] for name in SIDES)
        for name in SIDES:
            cells = [f"{result[name][k]:.3f}" if k.endswith("_s") else f"{result[name][k]:.0f}" for k in keys]
            table.add_row(str(result["microbatches"]), name, *cells)
        table.add_row("", "ratio", *(f"{ours[k] / theirs[k]:.2f}" for k in keys), end_section=True)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--profile", action="store_true", help="where rank 0 of rankloom spends its time")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.profile:
        print(on_ranks("profile", options.microbatches[0])[0])
        return
    results = [measure(m, options.repeats) for m in options.microbatches]
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
