"""Mixture-of-experts arguments of Megatron-LM: the divisions are checked, the layout does not model them.

experts on a rank = num_experts / EP      world = ETP x EP x PP x expert data parallel size
"""

from __future__ import annotations

from collections.abc import Iterator

from rankloom.config.findings import Finding
from rankloom.config.foreign.arguments import Arguments
from rankloom.config.foreign.flags import EXPERT_FLAGS
from rankloom.layout.arithmetic import nearest

__all__ = ["check_experts", "expert_problems", "neighbours"]


def neighbours(value: int, step: int) -> str:
    """The multiples of ``step`` next to a value: "8 or 12"."""
    below = value // step * step
    return f"{below} or {below + step}" if below else f"{step}"


def divisors_near(value: int, of: int) -> str:
    """The divisors of a number next to a value: "4 or 8"."""
    return " or ".join(map(str, nearest(value, [d for d in range(1, of + 1) if of % d == 0])))


def check_experts(arguments: Arguments, *, world_size: int | None) -> Iterator[Finding]:
    """Findings about experts; none when the job has none."""
    given = [name for name in EXPERT_FLAGS if arguments.has(name)]
    if all((arguments.integer(name) or 0) <= 1 for name in given) and not arguments.integer("num-experts"):
        return
    spelled = {name: arguments.spell(name) for name in (*EXPERT_FLAGS, "pipeline-model-parallel-size")}
    tp, ep = (arguments.integer(f"{axis}-model-parallel-size") or 1 for axis in ("tensor", "expert"))
    unknown = arguments.unknown(*EXPERT_FLAGS, "tensor-model-parallel-size", "pipeline-model-parallel-size")
    if ep > 1 and not arguments.integer("num-experts") and "num-experts" not in unknown:
        message = f"{spelled['expert-model-parallel-size']} {ep} needs --num-experts, which is not given"
        yield Finding("error", "experts", message, (), arguments.where("expert-model-parallel-size"))
    problems = expert_problems(
        spelled,
        num_experts=arguments.integer("num-experts"),
        ep=ep,
        etp=arguments.integer("expert-tensor-parallel-size") or tp,
        shards=arguments.integer("expert-tensor-parallel-num-weight-shards"),
        pp=arguments.integer("pipeline-model-parallel-size") or 1,
        world_size=world_size,
    )
    for message in problems if not unknown else ():
        yield Finding("error", "experts", message, (), arguments.where(*given))
    if arguments.integer("num-experts") and tp > 1 and not arguments.on("sequence-parallel"):
        message = (
            f"{spelled['num-experts']} {arguments.integer('num-experts')} with "
            f"{arguments.spell('tensor-model-parallel-size')} {tp} needs "
            f"--sequence-parallel: Megatron-LM does not train experts with tensor parallelism without it"
        )
        yield Finding("error", "experts", message, ("parallel.sequence_parallel",))
    if arguments.on("fp16") and ep > 1:
        yield Finding("error", "experts", "--fp16 does not work with expert parallelism; use --bf16")
    shown = ", ".join(arguments.known[name].shown for name in given)
    message = f"experts are not modelled: {shown}; weights, bytes and groups of expert layers are not shown"
    yield Finding("warning", "experts", message, (), arguments.where(*given))


def expert_problems(
    spelled: dict[str, str],
    *,
    num_experts: int | None,
    ep: int,
    etp: int,
    shards: int | None,
    pp: int,
    world_size: int | None,
) -> Iterator[str]:
    """The divisions that do not come out even, in the job's own names."""
    experts, ep_name, etp_name, shards_name, pp_name = spelled.values()
    if num_experts and num_experts % ep:
        yield (
            f"{experts} {num_experts} is not a multiple of {ep_name} {ep}; try {ep_name} "
            f"{divisors_near(ep, num_experts)}, or {experts} {neighbours(num_experts, ep)}"
        )
    if shards is not None and shards % etp:
        yield (f"{shards_name} {shards} is not a multiple of {etp_name} {etp}; try {neighbours(shards, etp)}")
        shards = None
    step = (shards or etp) * ep * pp
    if world_size is not None and world_size % step:
        first = f"{shards_name} {shards}" if shards else f"{etp_name} {etp}"
        yield (
            f"world size {world_size} is not a multiple of {step} = {first} x {ep_name} {ep} x "
            f"{pp_name} {pp}; try a world size of {neighbours(world_size, step)}"
        )
