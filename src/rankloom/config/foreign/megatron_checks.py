"""What Megatron-LM itself would stop at, as far as it shows without a layout; and what is shown otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rankloom.config.findings import Finding, Topic
from rankloom.config.foreign.arguments import Arguments
from rankloom.config.foreign.megatron_experts import divisors_near, neighbours

__all__ = ["check_arguments"]

_REQUIRED = (
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "max-position-embeddings",
    "seq-length",
    "micro-batch-size",
)


def check_arguments(arguments: Arguments) -> Iterator[Finding]:
    """Findings of everything except for the layout, the batch over lanes, experts and the model's bytes."""
    yield from _pipeline(arguments)
    yield from _heads(arguments)
    yield from _context(arguments)
    yield from _batch(arguments)
    yield from _training(arguments)
    yield from _shown_otherwise(arguments)
    missing = [f"--{name}" for name in _REQUIRED if not arguments.has(name)]
    if missing:
        message = f"Megatron-LM does not start without {', '.join(missing)}, not given here"
        yield Finding("note", "settings", message)


def _error(arguments: Arguments, topic: Topic, message: str, *names: str, key: str = "") -> Finding:
    return Finding("error", topic, message, (key,) if key else (), arguments.where(*names))


def _pipeline(a: Arguments) -> Iterator[Finding]:
    layers, stages = a.integer("num-layers"), a.integer("pipeline-model-parallel-size") or 1
    if layers is None or stages == 1 or a.has("pipeline-model-parallel-layout"):
        return
    name, key = a.spell("pipeline-model-parallel-size"), "parallel.pipeline_model_parallel_size"
    ends = [f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
    given = {end: value for end in ends if (value := a.integer(end)) is not None}
    if given:
        yield from _uneven_stages(a, layers, stages, given)
        return
    extra = [w for w in ("embedding", "loss") if a.on(f"account-for-{w}-in-pipeline-split")]
    total = layers + len(extra)
    text = f"--num-layers {layers}" + "".join(f" + 1 for the {word}" for word in extra)
    if total % stages:
        remedy = f"try {name} {divisors_near(stages, total)}, or --num-layers "
        below = total // stages * stages
        counts = [n - len(extra) for n in (below, below + stages) if n > len(extra)]
        message = f"{text} is not a multiple of {name} {stages}; {remedy}{' or '.join(map(str, counts))}"
        yield _error(a, "model", message, "num-layers", "pipeline-model-parallel-size", key=key)
        return
    yield from _virtual_stages(a, total // stages, key)


def _uneven_stages(a: Arguments, layers: int, stages: int, given: dict[str, int]) -> Iterator[Finding]:
    left, others = layers - sum(given.values()), stages - len(given)
    if left < 0 or (others and left % others) or (not others and left):
        shown = " - ".join(f"{a.spell(n)} {v}" for n, v in given.items())
        try_it = (
            f"; try --num-layers {sum(given.values()) + max(left // others, 1) * others}" if others else ""
        )
        message = (
            f"--num-layers {layers} - {shown} = {left} does not divide over the other {others} stages{try_it}"
        )
        yield _error(a, "model", message, "num-layers", *given, key="parallel.pipeline_model_parallel_size")


def _virtual_stages(a: Arguments, per_stage: int, key: str) -> Iterator[Finding]:
    by_layers, by_stages = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
    if a.has(by_layers) and a.has(by_stages):
        message = f"{a.spell(by_layers)} and {a.spell(by_stages)} say the same thing; give one of them"
        yield _error(a, "model", message, by_layers, by_stages, key=key)
    for name in (by_layers, by_stages):
        count = a.integer(name)
        if count and per_stage % count:
            message = (
                f"{per_stage} layers of a pipeline stage are not a multiple of {a.spell(name)} {count}; "
                f"try {divisors_near(count, per_stage)}"
            )
            yield _error(a, "model", message, name, key=key)


def _heads(a: Arguments) -> Iterator[Finding]:
    heads, tp = a.integer("num-attention-heads"), a.integer("tensor-model-parallel-size") or 1
    hidden, groups = a.integer("hidden-size"), a.integer("num-query-groups")
    tp_name, key = a.spell("tensor-model-parallel-size"), "parallel.tensor_model_parallel_size"
    if heads and hidden and not a.has("kv-channels") and hidden % heads:
        message = (
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; "
            f"try {neighbours(hidden, heads)}, or give --kv-channels"
        )
        yield _error(a, "model", message, "hidden-size", "num-attention-heads")
    cut = [("--num-attention-heads", "num-attention-heads", heads)]
    if a.on("group-query-attention"):
        cut.append(("--num-query-groups", "num-query-groups", groups or 1))
        if heads and heads % (groups or 1):
            message = (
                f"--num-attention-heads {heads} is not a multiple of --num-query-groups {groups}; "
                f"try --num-query-groups {divisors_near(groups or 1, heads)}"
            )
            yield _error(a, "model", message, "num-attention-heads", "num-query-groups")
    elif groups is not None and groups != heads:
        message = f"--num-query-groups {groups} has no effect without --group-query-attention"
        yield Finding("warning", "model", message, (), a.where("num-query-groups"))
    cut.append(("--ffn-hidden-size", "ffn-hidden-size", a.integer("ffn-hidden-size")))
    for shown, name, size in cut:
        if size and size % tp:
            message = (
                f"{shown} {size} is not a multiple of {tp_name} {tp}; try {tp_name} {divisors_near(tp, size)}"
            )
            yield _error(a, "model", message, name, "tensor-model-parallel-size", key=key)


def _context(a: Arguments) -> Iterator[Finding]:
    cp, sizes = a.integer("context-parallel-size") or 1, a.integers("hierarchical-context-parallel-sizes")
    key, name = "parallel.context_parallel_size", "hierarchical-context-parallel-sizes"
    if sizes and prod(sizes) != cp and not a.unknown("context-parallel-size"):
        text = " x ".join(map(str, sizes))
        message = f"--{name} {text} = {prod(sizes)} is not {a.spell('context-parallel-size')} {cp}"
        yield _error(a, "layout", message, name, "context-parallel-size", key=key)
    types = a.known["cp-comm-type"].value if a.has("cp-comm-type") else ()
    if isinstance(types, tuple) and "a2a+p2p" in types and not sizes:
        yield _error(a, "layout", f"--cp-comm-type a2a+p2p needs --{name}", "cp-comm-type", key=key)
    if a.on("tp-comm-overlap") and not a.on("sequence-parallel"):
        message = "--tp-comm-overlap needs --sequence-parallel, which is off unless given"
        yield _error(a, "layout", message, "tp-comm-overlap", key="parallel.sequence_parallel")
    length, positions = a.integer("seq-length"), a.integer("max-position-embeddings")
    if length and positions and positions < length:
        message = f"--max-position-embeddings {positions} is smaller than --seq-length {length}; try {length}"
        yield _error(
            a, "sequence", message, "max-position-embeddings", "seq-length", key="data.max_seq_length"
        )


def _batch(a: Arguments) -> Iterator[Finding]:
    key, size, ramp = (
        "train.global_batch_size",
        a.integer("global-batch-size"),
        a.integers("rampup-batch-size"),
    )
    if not a.has("global-batch-size") and a.has("micro-batch-size"):
        message = (
            f"--global-batch-size is not given: Megatron-LM takes --micro-batch-size "
            f"{a.integer('micro-batch-size') or ''} x the number of lanes".replace("  ", " ")
        )
        yield Finding("note", "batch", message, (key,))
    if ramp and len(ramp) != 3:
        message = f"--rampup-batch-size takes three numbers (start, increment, samples), not {len(ramp)}"
        yield _error(a, "batch", message, "rampup-batch-size", key=key)
    elif ramp and size:
        start, step, samples = ramp
        if step < 1 or (size - start) % step:
            message = (
                f"--global-batch-size {size} - {start} is not a multiple of the increment {step} of "
                f"--rampup-batch-size; try --global-batch-size "
                f"{start + (size - start) // max(step, 1) * max(step, 1)}"
            )
            yield _error(a, "batch", message, "rampup-batch-size", "global-batch-size", key=key)
        message = (
            f"--rampup-batch-size: the batch grows from {start} to {size} rows by {step} over {samples} "
            f"samples; what is shown is the full batch"
        )
        yield Finding("note", "batch", message, (key,), a.where("rampup-batch-size"))


def _training(a: Arguments) -> Iterator[Finding]:
    if a.has("train-iters") and a.has("train-samples"):
        message = "--train-iters and --train-samples exclude each other; give one of them"
        yield _error(a, "training", message, "train-iters", "train-samples")
    if a.has("train-iters") and a.has("rampup-batch-size"):
        message = "--rampup-batch-size needs --train-samples; it does not work with --train-iters"
        yield _error(a, "training", message, "train-iters", "rampup-batch-size")
    lr, lowest = a.number("lr"), a.number("min-lr")
    if lr is not None and lowest is not None and lowest > lr:
        message = f"--min-lr {lowest:g} is larger than --lr {lr:g}; try {lr:g} or less"
        yield _error(a, "training", message, "min-lr", "lr")
    if a.has("save") and not a.has("save-interval"):
        yield _error(a, "outputs", "--save needs --save-interval, which is not given", "save")
    if a.on("bf16") and a.on("fp16"):
        yield _error(a, "training", "--bf16 and --fp16 exclude each other; give one of them", "bf16", "fp16")
    if a.on("overlap-param-gather") and not a.on("overlap-grad-reduce"):
        message = "--overlap-param-gather needs --overlap-grad-reduce, which is not given"
        yield _error(a, "training", message, "overlap-param-gather")


def _shown_otherwise(a: Arguments) -> Iterator[Finding]:
    """Settings with which ranks hold or are numbered otherwise than a layout of ours shows."""
    for name in ("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2"):
        if a.on(name):
            message = (
                f"--{name} cuts the weights over the data-parallel ranks as well; "
                f"the weight shards and bytes shown are those without it"
            )
            yield Finding("warning", "layout", message, (), a.where(name))
    stages = a.integer("pipeline-model-parallel-size") or 1
    if a.on("use-torch-fsdp2") and stages > 1:
        message = (
            f"--use-torch-fsdp2 does not work with {a.spell('pipeline-model-parallel-size')} {stages}; try 1"
        )
        key = "parallel.pipeline_model_parallel_size"
        yield _error(a, "layout", message, "use-torch-fsdp2", "pipeline-model-parallel-size", key=key)
    if a.on("use-tp-pp-dp-mapping") and stages > 1:
        message = (
            f"--use-tp-pp-dp-mapping numbers the {stages} pipeline stages before the data-parallel ranks; "
            f"the ranks shown are numbered with the pipeline last, which is the same only if the "
            f"data-parallel size is 1"
        )
        yield Finding("warning", "layout", message, ("parallel.rank_order",), a.where("use-tp-pp-dp-mapping"))
