"""Saving and loading of a training state against torch.save + fsync and torch.load of the same bytes.

    python benchmarks/checkpoint.py [--ranks 1 2] [--repeats 5] [--folder DIR] [--json FILE]

About 1 GB of fp32 weights and both moments. The two sides alternate in one run, on one disk, one after the
other; torch saves everything from one process, as one file. Loading finds the files in the page cache on both
sides. Also: how long a save in the background blocks, and how much memory it takes beside the state."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig

from rankloom.checkpoint import Checkpointer, load, read_manifest
from rankloom.comm import Communicator
from rankloom.layout import GTPParallelLayout
from rankloom.models import ShardedModel
from rankloom.optim import ShardedAdamW
from rankloom.plan import ModelPlan, ModelSpec

MODEL = {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 16384,
    "tie_word_embeddings": False,
}


def training_state(rank: int, ranks: int) -> tuple[ShardedModel, ShardedAdamW]:
    """A model and an optimizer as after a step, with random values."""
    layout = GTPParallelLayout.resolve(world_size=ranks, tensor_parallel_num_weight_shards=ranks)
    comm = Communicator(layout, rank, device=torch.device("cpu"), timeout_s=300)
    plan = ModelPlan.build(ModelSpec.from_config(MODEL), layout)
    config = LlamaConfig(**{k: v for k, v in MODEL.items() if k != "model_type"})
    model = ShardedModel(plan, config, comm, dtype=torch.float32)
    optimizer = ShardedAdamW(
        model.units,
        model.small,
        comm,
        decays=lambda p: p.sharded,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
        clip_grad=1.0,
    )
    optimizer.restart(1)
    generator = torch.Generator().manual_seed(rank)
    for part in (part for piece in optimizer.pieces for part in piece.parts):
        for tensor in (part.master, *optimizer.moments(part)):
            tensor.normal_(generator=generator)
    return model, optimizer


def torch_state(num_bytes: int) -> dict[str, torch.Tensor]:
    """As many bytes in tensors of about the size of a layer's weights."""
    numel = 768 * 2048
    count, rest = divmod(num_bytes // 4, numel)
    generator = torch.Generator().manual_seed(0)
    sizes = [*[numel] * count, *([rest] if rest else [])]
    return {f"tensor {i}": torch.randn(size, generator=generator) for i, size in enumerate(sizes)}


def torch_save(state: dict[str, torch.Tensor], file: Path) -> None:
    with file.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())


class PeakMemory:
    """The most anonymous memory this process had inside ``with``, beyond what it had before, in bytes."""

    def __enter__(self) -> PeakMemory:
        gc.collect()
        self._before = self.peak = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak -= self._before


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon")


def timed(call: Callable[[], object]) -> float:
    """Seconds until all ranks are through."""
    dist.barrier()
    os.sync()  # what others wrote does not count
    dist.barrier()
    since = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - since


def measure(rank: int, ranks: int, folder: Path, repeats: int) -> dict[str, Any]:
    model, optimizer = training_state(rank, ranks)
    checkpointer = Checkpointer(model, optimizer, folder / "checkpoints", background=False, keep=1)
    background = Checkpointer(model, optimizer, folder / "checkpoints", keep=1)
    num_bytes = 12 * model.plan.spec.num_parameters
    own_bytes = sum(3 * part.master.nbytes for piece in optimizer.pieces for part in piece.parts)
    state = torch_state(num_bytes) if rank == 0 else {}
    file = folder / "state.pt"
    times: dict[str, list[float]] = {}
    memory = 0
    for repeat in range(repeats + 1):

        def note(name: str, call: Callable[[], object], first: bool = repeat == 0) -> None:
            seconds = timed(call)
            if not first:
                times.setdefault(name, []).append(seconds)

        path = folder / "checkpoints" / f"step-{repeat:08d}"
        note("torch save", lambda: torch_save(state, file) if rank == 0 else None)
        note("save", lambda step=repeat: checkpointer.save(step, state={}))  # type: ignore[misc]
        note("torch load", lambda: torch.load(file, weights_only=True) if rank == 0 else None)
        note("load", lambda path=path: load(model, optimizer, path))  # type: ignore[misc]
        with PeakMemory() as peak:
            note("blocked", lambda step=repeat: background.save(step, state={}))  # type: ignore[misc]
            background.wait()
        memory = max(memory, peak.peak)
    stored = read_manifest(path).num_bytes
    return {"times": times, "memory": memory, "own_bytes": own_bytes, "bytes": num_bytes, "stored": stored}


def run_rank(rank: int, ranks: int, store: str, folder: str, repeats: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    queue.put((rank, measure(rank, ranks, Path(folder), repeats)))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(ranks: int, folder: Path, repeats: int) -> dict[str, Any]:
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    work = Path(tempfile.mkdtemp(dir=folder, prefix="checkpoint-benchmark-")).resolve()  # for a file:// URL
    try:
        arguments = (ranks, str(work / "store"), str(work), repeats, queue)
        processes = mp.spawn(run_rank, arguments, nprocs=ranks, join=False)
        results: dict[int, Any] = {}
        while len(results) < ranks:
            if queue.empty():
                processes.join(timeout=0.2)  # raises what a rank that failed has raised
            else:
                rank, found = queue.get()
                results[rank] = found
        while not processes.join():
            pass
    finally:
        shutil.rmtree(work, ignore_errors=True)
    overheads = [results[rank]["memory"] / results[rank]["own_bytes"] for rank in results]
    seconds = {name: statistics.median(values) for name, values in results[0]["times"].items()}
    fastest = {name: min(values) for name, values in results[0]["times"].items()}
    return {
        "ranks": ranks,
        "bytes": results[0]["bytes"],
        "stored_bytes": results[0]["stored"],
        "median_s": seconds,
        "fastest_s": fastest,
        "save_ratio": seconds["save"] / seconds["torch save"],
        "load_ratio": seconds["load"] / seconds["torch load"],
        "load_to_torch_save": seconds["load"] / seconds["torch save"],
        "fastest_save_ratio": fastest["save"] / fastest["torch save"],
        "fastest_load_ratio": fastest["load"] / fastest["torch load"],
        "memory_bytes": results[0]["memory"],
        "memory_of_own_bytes": max(overheads),
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title=f"{results[0]['bytes'] / 1e9:.2f} GB of training state, median (fastest) seconds")
    for column in ("ranks", "", "save", "load", "blocked in background", "memory of a save / own bytes"):
        table.add_column(column, justify="left" if not column else "right")
    for result in results:

        def cell(name: str, of: dict[str, Any] = result) -> str:
            return f"{of['median_s'][name]:.2f} ({of['fastest_s'][name]:.2f})"

        overhead = f"{result['memory_of_own_bytes']:.2f}"
        table.add_row(str(result["ranks"]), "rankloom", cell("save"), cell("load"), cell("blocked"), overhead)
        table.add_row("", "torch", cell("torch save"), cell("torch load"), "", "")
        ratios = (f"{result[k]:.2f} ({result[f'fastest_{k}']:.2f})" for k in ("save_ratio", "load_ratio"))
        table.add_row("", "ratio", *ratios, "", "", end_section=True)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="on the disk to measure")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.folder.mkdir(parents=True, exist_ok=True)
    results = [on_ranks(ranks, options.folder, options.repeats) for ranks in options.ranks]
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
