"""Jobs that pages are made of in tests, from 1 rank to 16,384."""

from __future__ import annotations

from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.calls import Call
from rankloom.plan import BatchArithmetic, ModelPlan, ModelSpec, StepShape
from rankloom.plan.job import Job

TINY = {
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
LONG = {"tensor_parallel_num_weight_shards": 64, "tensor_parallel_num_sequence_shards": 64}
LARGE = {
    "tensor_model_parallel_size": 8,
    "tensor_parallel_num_weight_shards": 64,
    "tensor_parallel_num_sequence_shards": 16,
}


def bare(title: str = "bare", *, domain_size: int = 8, gpus_per_node: int | None = None, **settings) -> Job:
    """A job of which only the layout is known."""
    layout = GTPParallelLayout.resolve(**settings)
    topology = Topology.regular(layout, nvlink_domain_size=domain_size, gpus_per_node=gpus_per_node)
    return Job(title=title, program="rankloom", origin=title, layout=layout, topology=topology)


def full(job: Job, *, rows: int, micro: int, tokens: int, model=TINY, calls: tuple[str, ...] = ()) -> Job:
    """The same job with a model, a batch and calls."""
    batch = BatchArithmetic.compute(job.layout, global_batch_size=rows, micro_batch_size=micro)
    return Job(
        title=job.title,
        program=job.program,
        origin=job.origin,
        layout=job.layout,
        topology=job.topology,
        batch=batch,
        sequence_length=tokens,
        plan=ModelPlan.build(ModelSpec.from_config(model), job.layout),
        step=StepShape(micro, batch.num_microbatches, tokens, 4),
        calls=tuple(Call.parse(call) for call in calls),
    )


def demo() -> Job:
    """8 ranks, W 4, Q 2, CP 2."""
    job = bare(
        "demo.yaml",
        world_size=8,
        tensor_parallel_num_weight_shards=4,
        tensor_parallel_num_sequence_shards=2,
        context_parallel_size=2,
    )
    return full(job, rows=8, micro=4, tokens=256)


def driven() -> Job:
    """24 ranks, TP 4, W 12, nodes of 4, one call that reaches everybody and one that does not."""
    job = bare(
        "driven.yaml",
        gpus_per_node=4,
        world_size=24,
        tensor_model_parallel_size=4,
        tensor_parallel_num_weight_shards=12,
    )
    calls = (
        "all: shard=data_parallel replicate=context_parallel,tensor_parallel,pipeline_parallel",
        "some: shard=data_parallel",
    )
    return full(job, rows=48, micro=2, tokens=512, calls=calls)


def stages() -> Job:
    """16 ranks from rank 8 on, TP 2, PP 2, CP 2."""
    return bare(
        "stages",
        world_size=16,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        context_parallel_size=2,
        rank_offset=8,
    )


def staged(*, world: int = 8, title: str = "staged.sh") -> Job:
    """TP 2, PP 4 and nothing that gathers weights: stages of two layers each."""
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4}
    job = bare(title, gpus_per_node=8, world_size=world, **sizes)
    return full(job, rows=world, micro=1, tokens=256, model=TINY | {"num_hidden_layers": 8})


def long_rows() -> Job:
    """128 ranks, W 64, Q 64, CP 2 in domains of 64."""
    job = bare("long.yaml", domain_size=64, gpus_per_node=4, world_size=128, context_parallel_size=2, **LONG)
    return full(job, rows=4, micro=1, tokens=4096)


def thousand() -> Job:
    job = bare("thousand", gpus_per_node=8, world_size=1024, context_parallel_size=2, **LARGE)
    return full(job, rows=512, micro=1, tokens=4096)


def many(*, domain_size: int = 72) -> Job:
    """16,384 ranks."""
    job = bare(
        "many", domain_size=domain_size, gpus_per_node=4, world_size=16384, context_parallel_size=4, **LARGE
    )
    return full(job, rows=4096, micro=1, tokens=4096)
