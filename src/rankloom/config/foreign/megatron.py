"""A Megatron-LM job: a launch line, a script around one, a list of arguments, or a YAML file of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rankloom.config.findings import Finding
from rankloom.config.foreign.arguments import Arguments
from rankloom.config.foreign.flags import DEFAULTS, KEYS
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.foreign.launcher import Launch
from rankloom.config.foreign.megatron_checks import check_arguments
from rankloom.config.foreign.megatron_experts import check_experts
from rankloom.config.foreign.megatron_model import model_of
from rankloom.errors import UserError
from rankloom.layout import Translation, from_fold_whole_cp, from_gtp_remat_fold_cp

__all__ = ["job_of"]

TP, W, Q, CP = (
    f"parallel.{name}"
    for name in (
        "tensor_model_parallel_size",
        "tensor_parallel_num_weight_shards",
        "tensor_parallel_num_sequence_shards",
        "context_parallel_size",
    )
)
_UNEQUAL_STAGES = (
    "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "pipeline-model-parallel-layout",
)
_FOLDS = ("gtp-remat-fold-cp", "fold-whole-cp")


@dataclass
class _Draft:
    """Values by dotted key, with where each came from and its name in the job."""

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def put(self, key: str, value: object, source: str, spelled: str) -> None:
        self.values[key], self.sources[key], self.spelled[key] = value, source, spelled


def job_of(
    arguments: Arguments,
    launch: Launch,
    *,
    origin: str,
    rank_order: str | None = None,
    read: tuple[str, ...] = (),
    findings: tuple[Finding, ...] = (),
) -> ForeignJob:
    """The job of these arguments. ``read`` and ``findings``: of what stood around them."""
    draft = _draft(arguments, launch)
    folded = list(_fold(arguments, draft))
    order = _rank_order(arguments, draft, rank_order)
    world = launch.world_size
    model, model_notes = model_of(arguments)
    return ForeignJob(
        program="megatron",
        origin=origin,
        mapping=nested(draft.values),
        sources=MappingProxyType(draft.sources),
        spelled=MappingProxyType(draft.spelled),
        read=(*read, *launch.read, *(a.shown for a in arguments.known.values())),
        ignored=arguments.ignored,
        findings=(
            *arguments.findings,
            *launch.findings,
            *findings,
            *folded,
            *order,
            *check_experts(arguments, world_size=world),
            *check_arguments(arguments),
            *model_notes,
        ),
        model=model,
        equal_stages=not any(arguments.has(name) or arguments.on(name) for name in _UNEQUAL_STAGES),
        element_size=2 if arguments.on("bf16") or arguments.on("fp16") else 4,
        unknown=frozenset(draft.unknown),
    )


def nested(values: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    """{"parallel.x": 1} as {"parallel": {"x": 1}}."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return MappingProxyType({name: MappingProxyType(body) for name, body in sections.items()})


def _draft(arguments: Arguments, launch: Launch) -> _Draft:
    draft = _Draft()
    for name, key in KEYS.items():
        value = arguments.known[name].value if arguments.has(name) else None
        if value is not None:
            draft.put(key, value, "file", arguments.spell(name))
        elif not arguments.has(name) and name in DEFAULTS:
            draft.put(key, DEFAULTS[name], "default", f"--{name}")
        else:
            draft.spelled[key] = arguments.spell(name)
            draft.unknown |= {key} if arguments.has(name) else set()
    if arguments.integer("tensor-model-parallel-size") in (None, 1) and draft.values.get(TP) == 1:
        draft.values["parallel.sequence_parallel"] = False  # as Megatron-LM sets it then
    if launch.world_size is not None:
        draft.put("cluster.world_size", launch.world_size, "file", launch.world_spelled)
    if launch.gpus_per_node is not None:
        draft.put("cluster.gpus_per_node", launch.gpus_per_node, "file", launch.gpus_spelled)
    return draft


def _fold(arguments: Arguments, draft: _Draft) -> Iterator[Finding]:
    """The two older spellings, in today's settings."""
    given = [name for name in _FOLDS if arguments.on(name)]
    where = arguments.where(*given)
    if len(given) == 2:
        message = "--gtp-remat-fold-cp and --fold-whole-cp say different things; give one of them"
        yield Finding("error", "layout", message, (W, Q, CP), where)
    elif given and arguments.has("tensor-parallel-num-sequence-shards"):
        spelled = arguments.spell("tensor-parallel-num-sequence-shards")
        message = f"--{given[0]} is an older way to say {spelled}; give one of them"
        yield Finding("error", "layout", message, (Q,), where)
    elif given and not draft.unknown.isdisjoint((TP, W, CP)):
        draft.unknown |= {W, Q, CP}
    elif given:
        try:
            translation = _translated(given[0], draft)
        except UserError as error:
            yield Finding("error", "layout", str(error), (W, Q, CP), where)
            return
        for name, value in translation.settings.items():
            key = f"parallel.{name}"
            spelled = f"{draft.spelled[key]} with --{given[0]}"
            draft.put(key, value, "file", spelled)
        yield Finding("note", "layout", translation.describe(), (W, Q, CP), where)


def _translated(flag: str, draft: _Draft) -> Translation:
    """Raises UserError when the weight shards do not divide by TP."""
    tp, cp = (_integer(draft.values.get(key), 1) for key in (TP, CP))
    shards = _integer(draft.values.get(W), tp)
    if shards % tp:
        raise UserError(f"{draft.spelled[W]} {shards} is not a multiple of {draft.spelled[TP]} {tp}")
    sequence_parallel = bool(draft.values.get("parallel.sequence_parallel"))
    if flag == "fold-whole-cp":
        return from_fold_whole_cp(
            context_parallel_size=cp,
            gtp_remat_size=shards // tp,
            tensor_model_parallel_size=tp,
            sequence_parallel=sequence_parallel,
        )
    return from_gtp_remat_fold_cp(
        runtime_context_parallel_size=cp,
        gtp_remat_size=shards // tp,
        tensor_model_parallel_size=tp,
        sequence_parallel=sequence_parallel,
    )


def _integer(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _rank_order(arguments: Arguments, draft: _Draft, given: str | None) -> Iterator[Finding]:
    """Puts the rank order; eager, so that it is there whether or not the findings are looked at."""
    if given is not None:
        draft.put("parallel.rank_order", given, "cli", "--rank-order")
        return iter(())
    flag = next((n for n in ("tensor-parallel-num-sequence-shards", *_FOLDS) if arguments.has(n)), None)
    if flag is not None and Q in draft.values:
        order, why = "tp-gtp-cp-dp-pp", f"{arguments.spell(flag)} is given"
    else:
        order, why = "tp-cp-gtp-dp-pp", "no sequence-shard flag is given"
    draft.put("parallel.rank_order", order, "default", "--rank-order")
    message = f"rank order {order} is assumed, because {why}; --rank-order says another one"
    return iter([Finding("note", "layout", message, ("parallel.rank_order",))])
