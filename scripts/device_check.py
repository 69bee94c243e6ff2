"""Trains a small model under several layouts on the GPUs of this machine and compares each with plain
transformers.

    python scripts/device_check.py [--device cuda|cpu] [--json FILE]

One process a GPU, NCCL. Every layout that fits the number of GPUs is run: ten steps in fp32, loss within 1e-4
of one process running plain transformers and torch AdamW on the same rows and the same kind of device (TF32
off). A checkpoint is saved in the background after five steps, and the other five are taken again from it:
within 1e-6. Prints a table with times, peak memory and bytes; exits 1 when a loss is off. ``--device cpu``
runs the same on gloo with four processes."""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from rankloom.checkpoint import Checkpointer, load
from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.models import Rows, SeededParameters, ShardedModel, fill, verify_copies
from rankloom.optim import ShardedAdamW
from rankloom.plan import ModelPlan, ModelSpec

MODEL = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
ROWS, LENGTH, STEPS = 8, 512, 10
HALF = STEPS // 2
SMALLER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "vocab_size": 512,
}
LR, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.95), 0.1, 1.0
TOLERANCE = 1e-4
RESUMED_TOLERANCE = 1e-6  # kernels on GPUs may sum in another order each time
W, Q, TP, CP = (
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "tensor_model_parallel_size",
    "context_parallel_size",
)
LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (2, {W: 2}),
    (2, {TP: 2}),
    (2, {W: 2, Q: 2}),
    (4, {W: 4}),
    (4, {W: 2, Q: 2, CP: 2}),
    (4, {TP: 2, W: 4}),
    (4, {TP: 2, W: 4, Q: 4}),
    (8, {W: 4, Q: 2, CP: 2}),
    (8, {TP: 2, W: 8, Q: 4}),
)


@dataclass
class Result:
    losses: list[float]
    step_s: float
    peak_mib: float = 0.0
    sent_mib: dict[str, float] = field(default_factory=dict)
    resumed: float = 0.0  # largest difference of the losses after loading


def rows_of(step: int, device: torch.device) -> Rows:
    """The global batch of a step: every row two documents, four of five tokens trained."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, model_of(device)["vocab_size"], (ROWS, LENGTH), generator=generator)
    trained = torch.rand(ROWS, LENGTH, generator=generator) < 0.8
    half = LENGTH // 2
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = torch.where(trained[:, 1:], ids[:, 1:], -100)
    labels[:, half - 1] = -100
    positions = torch.arange(half).repeat(2).expand(ROWS, -1)
    documents = torch.arange(2).repeat_interleave(half).expand(ROWS, -1)
    return Rows(*(t.contiguous().to(device) for t in (ids, labels, positions, documents)))


def model_of(device: torch.device) -> dict[str, Any]:
    return MODEL if device.type == "cuda" else {**MODEL, **SMALLER}


def config(device: torch.device) -> Any:
    settings = dict(model_of(device))
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def plain(device: torch.device) -> Result:
    """One process, plain transformers, each document on its own."""
    spec = ModelSpec.from_config(model_of(device))
    model = AutoModelForCausalLM.from_config(config(device), attn_implementation="sdpa").to(device)
    parameters, source = dict(model.named_parameters()), SeededParameters(0, std=0.02)
    with torch.no_grad():
        for p in spec.parameters:
            parameters[p.name].copy_(source.whole(p))
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": DECAY},
            {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=LR,
        betas=BETAS,
    )
    losses, since = [], time.perf_counter()
    for step in range(STEPS):
        rows, half, total = rows_of(step, device), LENGTH // 2, 0.0
        num_tokens = (rows.labels != -100).sum()
        for at in (0, half):
            part = slice(at, at + half)
            logits = model(input_ids=rows.input_ids[:, part], use_cache=False).logits.flatten(0, 1).float()
            targets = rows.labels[:, part].flatten()
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / num_tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return Result(losses, (time.perf_counter() - since) / STEPS)


def prepared(layout: GTPParallelLayout, comm: Communicator) -> tuple[ShardedModel, ShardedAdamW]:
    """The model of `plain`, cut by the layout, and its optimizer."""
    model = ShardedModel(
        ModelPlan.build(ModelSpec.from_config(model_of(comm.device)), layout),
        copy.deepcopy(config(comm.device)),
        comm,
        dtype=torch.float32,
    )
    fill(model, SeededParameters(0, std=0.02))
    optimizer = ShardedAdamW(
        model.units,
        model.small,
        comm,
        decays=lambda p: p.sharded,
        betas=BETAS,
        eps=1e-8,
        weight_decay=DECAY,
        clip_grad=CLIP,
    )
    model.reducer.on_complete = optimizer.launch_reduction
    return model, optimizer


def take_step(model: ShardedModel, optimizer: ShardedAdamW, step: int) -> float:
    """The loss of the whole batch, before the update."""
    comm, layout = model.comm, model.plan.layout
    rows, sums = rows_of(step, comm.device), torch.zeros(2, dtype=torch.float64, device=comm.device)
    mine = range(layout.lane(comm.rank), ROWS, layout.batch_parallel_size)
    for row in mine:
        one = Rows(*(t[row : row + 1] for t in vars(rows).values()))
        loss, tokens = model.forward_backward(one, first=row == mine[0], last=row == mine[-1])
        sums += torch.stack([loss, tokens.double()])
    total = comm["gtp_remat_replica"].sum_small(sums, "loss")
    optimizer.finish_reductions()
    norm = optimizer.gradient_norm(int(total[1]))
    optimizer.step(lr=LR, num_tokens=int(total[1]), norm=norm)
    return float(total[0] / total[1])


def sharded(layout: GTPParallelLayout, rank: int, device: torch.device, folder: Path) -> Result:
    """The same steps under a layout, saved in the background after half of them; then the second half again,
    by a model that loads what was saved."""
    comm = Communicator(layout, rank, device=device, timeout_s=120)
    comm.verify()
    model, optimizer = prepared(layout, comm)
    checkpointer = Checkpointer(model, optimizer, folder)
    losses, seconds = [], 0.0
    for step in range(STEPS):
        if step == HALF:
            saved = checkpointer.save(step, state={})
        since = time.perf_counter()
        losses.append(take_step(model, optimizer, step))
        seconds += (time.perf_counter() - since) / STEPS
    checkpointer.wait()
    verify_copies(model)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0
    sent = {name: count / STEPS / 2**20 for name, count in comm.bytes_sent().items() if count}
    model, optimizer = prepared(layout, comm)
    load(model, optimizer, saved)
    again = [take_step(model, optimizer, step) for step in range(HALF, STEPS)]
    verify_copies(model)  # and nothing is under way any more
    comm.close()
    return Result(losses, seconds, peak, sent, resumed=largest_error(again, losses[HALF:]))


def largest_error(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))


def run_rank(
    rank: int, world: int, kind: str, parallel: dict[str, Any] | None, store: str, results: Any
) -> None:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if parallel is None:
        results.put(plain(device))
        return
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    result = sharded(
        GTPParallelLayout.resolve(world_size=world, **parallel), rank, device, Path(store).parent / "run"
    )
    if rank == 0:
        results.put(result)
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(world: int, kind: str, parallel: dict[str, Any] | None) -> Result:
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (world, kind, parallel, os.path.join(folder, "store"), results), nprocs=world)
    result: Result = results.get()
    return result


def show(outcomes: list[dict[str, Any]]) -> None:
    table = Table(
        "ranks", "layout", "largest loss error", "resumed", "step s", "peak MiB", "MiB sent a step by rank 0"
    )
    for o in outcomes:
        sent = ", ".join(f"{name} {mib:.1f}" for name, mib in o["sent_mib"].items())
        numbers = (f"{o['error']:.1e}", f"{o['resumed']:.1e}", f"{o['step_s']:.3f}", f"{o['peak_mib']:.0f}")
        table.add_row(str(o["world"]), o["layout"], *numbers, sent)
    Console(width=150).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    available = torch.cuda.device_count() if options.device == "cuda" else 4
    if not available:
        print("no GPU on this machine; --device cpu runs the same checks on gloo", file=sys.stderr)
        return 2
    expected = on_ranks(1, options.device, None)
    outcomes = []
    for world, parallel in LAYOUTS:
        if world > available:
            continue
        result = on_ranks(world, options.device, parallel)
        error = largest_error(result.losses, expected.losses)
        layout = " ".join(f"{k}={v}" for k, v in parallel.items()) or "one rank"
        outcomes.append({"world": world, "layout": layout, "error": error, **vars(result)})
    show(outcomes)
    print(
        f"plain transformers: {expected.step_s:.3f} s a step; {len(outcomes)} of {len(LAYOUTS)} layouts run"
    )
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=2) + "\n")
    good = all(o["error"] <= TOLERANCE and o["resumed"] <= RESUMED_TOLERANCE for o in outcomes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
