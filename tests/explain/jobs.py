"""Jobs to look at: layouts with a batch, a small model and a topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO

from rich.console import Console

from rankloom.config.batch import BatchArithmetic
from rankloom.layout import Call, Driver, GTPParallelLayout, Topology
from rankloom.plan import ModelPlan, ModelSpec, StepShape
from rankloom.plan.job import Job

CONFIG = {
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}


def job(
    layout: GTPParallelLayout,
    *,
    title: str = "run.yaml",
    batch: tuple[int, int] | None = None,
    length: int | None = None,
    model: bool = False,
    topology: Topology | None = None,
    program: str = "rankloom",
    sources: Mapping[str, str] | None = None,
    spelled: Mapping[str, str] | None = None,
    driver: str = "",
    calls: Sequence[str] = (),
    not_looked_at: Sequence[str] = (),
) -> Job:
    """``batch``: (global batch, microbatch) in rows; ``model``: with the parameters of a small Llama."""
    rows = None
    if batch is not None:
        rows = BatchArithmetic.compute(layout, global_batch_size=batch[0], micro_batch_size=batch[1])
    step = None
    if rows is not None and length is not None:
        step = StepShape(rows.micro_batch_size, rows.num_microbatches, length, element_size=4)
    return Job(
        title=title,
        program=program,
        origin=title,
        layout=layout,
        topology=topology or Topology.regular(layout),
        sources=sources or {},
        spelled=spelled or {},
        batch=rows,
        sequence_length=length,
        plan=ModelPlan.build(ModelSpec.from_config(CONFIG), layout) if model else None,
        step=step,
        driver=Driver.parse(driver, layout) if driver else None,
        calls=tuple(Call.parse(call) for call in calls),
        not_looked_at=tuple(not_looked_at),
    )


def demo(**changes: object) -> GTPParallelLayout:
    """8 ranks, W 4, Q 2, CP 2, with other settings in place of these."""
    settings: dict[str, object] = {
        "world_size": 8,
        "tensor_parallel_num_weight_shards": 4,
        "tensor_parallel_num_sequence_shards": 2,
        "context_parallel_size": 2,
    }
    return GTPParallelLayout.resolve(**settings | changes)  # type: ignore[arg-type]


def console(width: int = 80, *, colour: bool = False) -> Console:
    """A console that writes into memory; :func:`text` is what it was given to print."""
    return Console(
        file=StringIO(),
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )


def text(made: Console) -> str:
    assert isinstance(made.file, StringIO)
    return "\n".join(line.rstrip() for line in made.file.getvalue().splitlines())
