"""What NeMo-RL itself would stop at, as far as it shows without a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rankloom.config.findings import Finding
from rankloom.config.foreign.megatron_experts import divisors_near, expert_problems, neighbours
from rankloom.config.foreign.nemo_rl_reader import Reader

__all__ = ["check_settings"]

_EXPERTS = (
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "expert_tensor_parallel_num_weight_shards",
)


def check_settings(
    reader: Reader, values: Mapping[str, object], *, backend: str, num_layers: int | None
) -> None:
    """Adds findings to the reader's. ``values``: what is known so far, by our keys."""
    found = [*_steps(reader), *_pairs(reader), *_packing(reader, values, backend), *_teacher(reader)]
    if backend == "megatron_cfg":
        found += [*_experts(reader, values), *_pipeline(reader, values, num_layers), *_fsdp(reader)]
    reader.findings += found


def _steps(reader: Reader) -> Iterator[Finding]:
    """Generated rows of a step are trained on in whole global batches."""
    name = reader.algorithm
    if name in ("grpo", "distillation"):
        prompts = reader.integer(f"{name}.num_prompts_per_step")
        each = reader.integer(f"{name}.num_generations_per_prompt")
        size = reader.integer("policy.train_global_batch_size")
        if prompts is None or each is None or size is None or size < 1:
            return
        rows = prompts * each
        if rows % size:
            yield Finding(
                "error",
                "batch",
                f"{name}.num_prompts_per_step {prompts} x {name}.num_generations_per_prompt {each} = {rows} "
                f"is not a multiple of policy.train_global_batch_size {size}; try "
                f"policy.train_global_batch_size {divisors_near(size, rows)}",
                ("train.global_batch_size",),
            )
        else:
            steps = rows // size
            text = f"{prompts} x {each} = {rows} rows are generated a step and trained on in {steps}"
            batches = "global batch" if steps == 1 else "global batches"
            yield Finding("note", "batch", f"{text} {batches} of {size}", ("train.global_batch_size",))


def _pairs(reader: Reader) -> Iterator[Finding]:
    if reader.algorithm in ("dpo", "rm"):
        message = (
            f"{reader.algorithm}: a row of policy.train_global_batch_size and policy.train_micro_batch_size "
            f"is a pair of a chosen and a rejected answer, so a rank holds twice as many sequences"
        )
        yield Finding("note", "batch", message, ("train.global_batch_size",))


def _packing(reader: Reader, values: Mapping[str, object], backend: str) -> Iterator[Finding]:
    packs = reader.on("policy.sequence_packing.enabled")
    dynamic = reader.on("policy.dynamic_batching.enabled")
    cp, pp = (
        _number(values.get(f"parallel.{n}_size")) for n in ("context_parallel", "pipeline_model_parallel")
    )
    key = "parallel.context_parallel_size"
    if packs and dynamic:
        message = (
            "policy.sequence_packing and policy.dynamic_batching exclude each other; set one enabled false"
        )
        yield Finding("error", "batch", message)
    if dynamic and pp > 1:
        message = (
            f"policy.dynamic_batching does not work with policy.megatron_cfg.pipeline_model_parallel_size "
            f"{pp}; set policy.dynamic_batching.enabled false and policy.sequence_packing.enabled true"
        )
        yield Finding("error", "batch", message, ("parallel.pipeline_model_parallel_size",))
    allowed = reader.on("policy.megatron_cfg.allow_unpacked_context_parallel")
    if backend == "megatron_cfg" and cp > 1 and not packs and not allowed:
        message = (
            f"policy.megatron_cfg.context_parallel_size {cp} needs policy.sequence_packing.enabled true, and "
            f"it is false"
        )
        yield Finding("error", "sequence", message, (key,))
    if backend == "dtensor_cfg" and cp > 1 and values.get("parallel.sequence_parallel"):
        message = (
            f"policy.dtensor_cfg.context_parallel_size {cp} does not work with "
            f"policy.dtensor_cfg.sequence_parallel true; set it false"
        )
        yield Finding("error", "sequence", message, (key, "parallel.sequence_parallel"))
    tokens = reader.value(f"policy.{'sequence_packing' if packs else 'dynamic_batching'}.train_mb_tokens")
    if packs or dynamic:
        how = "policy.sequence_packing" if packs else "policy.dynamic_batching"
        message = (
            f"{how} fills microbatches up to {tokens} tokens, so their number follows the data and not "
            f"policy.train_micro_batch_size"
        )
        yield Finding("note", "batch", message, ("train.micro_batch_size",))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _teacher(reader: Reader) -> Iterator[Finding]:
    if reader.settings.has("teacher"):
        message = "teacher is a second model with a layout of its own, which is not looked at"
        yield Finding("note", "layout", message)


def _experts(reader: Reader, values: Mapping[str, object]) -> Iterator[Finding]:
    names = {name: f"policy.megatron_cfg.{name}" for name in _EXPERTS}
    sizes = {name: reader.integer(path, key=f"experts.{name}") for name, path in names.items()}
    if all((size or 0) <= 1 for size in sizes.values()):
        return
    tp, pp = (_number(values.get(f"parallel.{n}_model_parallel_size")) for n in ("tensor", "pipeline"))
    world = values.get("cluster.world_size")
    pipeline = "policy.megatron_cfg.pipeline_model_parallel_size"
    problems = expert_problems(
        {"num-experts": "the number of experts", **names, "pipeline": pipeline},
        num_experts=None,
        ep=sizes[_EXPERTS[0]] or 1,
        etp=sizes[_EXPERTS[1]] or tp,
        shards=sizes[_EXPERTS[2]],
        pp=pp,
        world_size=world if isinstance(world, int) else None,
    )
    known = not any(key.startswith(("experts.", "parallel.")) for key in reader.unknown)
    for message in problems if known else ():
        yield Finding("error", "experts", message)
    shown = ", ".join(f"{names[n]} {size}" for n, size in sizes.items() if size is not None)
    message = f"experts are not modelled: {shown}; weights, bytes and groups of expert layers are not shown"
    yield Finding("warning", "experts", message)


def _pipeline(reader: Reader, values: Mapping[str, object], layers: int | None) -> Iterator[Finding]:
    where = "policy.megatron_cfg"
    ends = [reader.integer(f"{where}.num_layers_in_{end}_pipeline_stage") for end in ("first", "last")]
    stages = _number(values.get("parallel.pipeline_model_parallel_size"))
    if layers is None or stages == 1:
        return
    given = [end for end in ends if end is not None]
    left, others = layers - sum(given), stages - len(given)
    if others > 0 and left >= 0 and left % others == 0:
        return
    text = " - ".join(map(str, [layers, *given]))
    total = f" = {left}" if given else ""
    message = (
        f"{text}{total} layers do not divide over {others} stages of "
        f"{where}.pipeline_model_parallel_size {stages}; try {neighbours(layers, max(others, 1))} layers"
    )
    if not given:
        message = (
            f"num_hidden_layers {layers} of the model is not a multiple of {where}."
            f"pipeline_model_parallel_size {stages}; try {divisors_near(stages, layers)}, or "
            f"{where}.num_layers_in_first_pipeline_stage"
        )
    yield Finding("error", "model", message, ("parallel.pipeline_model_parallel_size",))


def _fsdp(reader: Reader) -> Iterator[Finding]:
    path = "policy.megatron_cfg.distributed_data_parallel_config"
    for name in ("use_custom_fsdp", "use_megatron_fsdp"):
        if reader.on(f"{path}.{name}"):
            message = (
                f"{path}.{name} cuts the weights over the data-parallel ranks as well; the weight shards and "
                f"bytes shown are those without it"
            )
            yield Finding("warning", "layout", message)
