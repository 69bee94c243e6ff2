"""A NeMo-RL job: its YAML for SFT, DPO, GRPO or distillation, in our keys.

The layout is that of ``policy``: ``megatron_cfg`` when it is enabled, else ``dtensor_cfg``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rankloom.config.findings import Finding
from rankloom.config.foreign.interpolation import Settings
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.foreign.megatron import nested
from rankloom.config.foreign.nemo_rl_checks import check_settings
from rankloom.config.foreign.nemo_rl_reader import Reader, ignored_settings, shown

__all__ = ["job_of_settings"]

_MEGATRON: Mapping[str, tuple[str, object]] = MappingProxyType(
    {
        "tensor_model_parallel_size": ("tensor_model_parallel_size", 1),
        "pipeline_model_parallel_size": ("pipeline_model_parallel_size", 1),
        "context_parallel_size": ("context_parallel_size", 1),
        "sequence_parallel": ("sequence_parallel", False),
        "tensor_parallel_num_weight_shards": ("tensor_parallel_num_weight_shards", None),
        "tensor_parallel_num_sequence_shards": ("tensor_parallel_num_sequence_shards", None),
    }
)
_DTENSOR: Mapping[str, tuple[str, object]] = MappingProxyType(
    {
        "tensor_model_parallel_size": ("tensor_parallel_size", 1),
        "context_parallel_size": ("context_parallel_size", 1),
        "sequence_parallel": ("sequence_parallel", False),
    }
)
_UNEQUAL_STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_ROWS: Mapping[str, str] = MappingProxyType(
    {
        "train.micro_batch_size": "policy.train_micro_batch_size",
        "train.global_batch_size": "policy.train_global_batch_size",
        "data.max_seq_length": "policy.max_total_sequence_length",
    }
)


_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def job_of_settings(
    content: Mapping[str, object],
    *,
    origin: str,
    rank_order: str | None = None,
    read: tuple[str, ...] = (),
    overridden: frozenset[str] = frozenset(),
) -> ForeignJob:
    """``content``: the settings with everything inherited; ``overridden``: paths from a command line."""
    reader = Reader(Settings(content))
    backend = _backend(reader)
    values, sources, spelled = _parallel(reader, backend, overridden)
    for key, path in _ROWS.items():
        spelled[key] = path
        value = reader.integer(path, key=key)
        if value is not None:
            values[key], sources[key] = value, "cli" if path in overridden else "file"
    _cluster(reader, values, sources, spelled)
    reader.findings.append(_rank_order(values, sources, spelled, rank_order))
    evaluation = _evaluation(reader, spelled)
    model = _model(reader)
    check_settings(reader, values, backend=backend, num_layers=_layers(model))
    multiple = reader.integer("policy.make_sequence_length_divisible_by")
    spelled["data.sequence_multiple"] = "policy.make_sequence_length_divisible_by"
    element_size = _ELEMENT_BYTES.get(str(reader.value("policy.precision")))
    return ForeignJob(
        program="nemo-rl",
        origin=origin,
        mapping=nested(values),
        sources=MappingProxyType(sources),
        spelled=MappingProxyType(spelled),
        read=(*read, *(f"{path}: {shown(value)}" for path, value in reader.read.items())),
        ignored=tuple(ignored_settings(content, frozenset(reader.read))),
        findings=tuple(reader.findings),
        model=model,
        sequence_multiple=multiple,
        eval_batch_size=evaluation[0],
        eval_micro_batch_size=evaluation[1],
        equal_stages=all(reader.value(f"policy.{backend}.{name}") is None for name in _UNEQUAL_STAGES),
        element_size=element_size,
        unknown=frozenset(key for key in reader.unknown if not key.startswith("experts.")),
    )


def _backend(reader: Reader) -> str:
    """ "megatron_cfg" or "dtensor_cfg", with what is to be said about it."""
    on = [name for name in ("megatron_cfg", "dtensor_cfg") if reader.on(f"policy.{name}.enabled")]
    keys = ("parallel.tensor_model_parallel_size",)
    if len(on) == 2:
        message = (
            "policy.megatron_cfg.enabled and policy.dtensor_cfg.enabled are both true, and NeMo-RL takes one "
            "of them; megatron_cfg is read here"
        )
        reader.findings.append(Finding("error", "settings", message, keys))
    if not on:
        message = (
            "neither policy.megatron_cfg.enabled nor policy.dtensor_cfg.enabled is true: NeMo-RL has nothing "
            "to train with; set one of them"
        )
        reader.findings.append(Finding("error", "settings", message, keys))
    backend = on[0] if on else "megatron_cfg"
    if backend == "dtensor_cfg":
        message = (
            "policy.dtensor_cfg is enabled and policy.megatron_cfg is not: weights are cut over the data- "
            "and context-parallel ranks as well (FSDP); the weight shards and bytes shown are those without"
        )
        reader.findings.append(Finding("warning", "layout", message, keys))
    return backend


def _parallel(
    reader: Reader, backend: str, overridden: frozenset[str]
) -> tuple[dict[str, object], dict[str, str], dict[str, str]]:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for name, (theirs, default) in (_MEGATRON if backend == "megatron_cfg" else _DTENSOR).items():
        key, path = f"parallel.{name}", f"policy.{backend}.{theirs}"
        spelled[key] = path
        problems = len(reader.findings)
        value: object = reader.switch(path, key=key) if default is False else reader.integer(path, key=key)
        given = value is not None and path in reader.read
        if not given and len(reader.findings) == problems:
            value = default
        if value is not None:
            values[key] = value
            sources[key] = "cli" if path in overridden else "file" if given else "default"
    if backend == "dtensor_cfg":
        key = "parallel.pipeline_model_parallel_size"
        values[key], sources[key], spelled[key] = 1, "default", "pipeline stages of policy.dtensor_cfg"
    if values.get("parallel.tensor_model_parallel_size") == 1:
        values["parallel.sequence_parallel"] = False
    return values, sources, spelled


def _cluster(
    reader: Reader, values: dict[str, object], sources: dict[str, str], spelled: dict[str, str]
) -> None:
    """The GPUs that train: all of the cluster, less those that only generate."""
    key = "cluster.world_size"
    problems = len(reader.findings)
    per_node = reader.count("cluster.gpus_per_node", key="cluster.gpus_per_node")
    nodes = reader.count("cluster.num_nodes", key=key)
    spelled["cluster.gpus_per_node"] = "cluster.gpus_per_node"
    spelled[key] = "cluster.num_nodes x cluster.gpus_per_node"
    if per_node is None or nodes is None:
        if len(reader.findings) > problems:
            return
        missing = [n for n, v in (("gpus_per_node", per_node), ("num_nodes", nodes)) if v is None]
        names = " and ".join(f"cluster.{name}" for name in missing)
        message = f"how many GPUs there are is not known: {names} is not given; give --world-size"
        reader.findings.append(Finding("warning", "layout", message, (key,)))
        return
    if _generates_apart(reader):
        per_node, nodes = _less_generation(reader, per_node, nodes)
    if per_node > 0 and nodes > 0:
        values["cluster.gpus_per_node"], values[key] = per_node, per_node * nodes
        sources["cluster.gpus_per_node"] = sources[key] = "file"


def _generates_apart(reader: Reader) -> bool:
    path = "policy.generation.colocated.enabled"
    return reader.settings.has(path) and reader.value(path) is False


def _less_generation(reader: Reader, per_node: int, nodes: int) -> tuple[int, int]:
    """(GPUs of a node, nodes) left to train on; with a finding that shows the subtraction."""
    where = "policy.generation.colocated.resources"
    gpus, own = reader.integer(f"{where}.gpus_per_node"), reader.integer(f"{where}.num_nodes")
    key = "cluster.world_size"
    if nodes == 1:
        if gpus is None or not 0 < gpus < per_node:
            message = (
                f"{where}.gpus_per_node must be 1 to {per_node - 1} of cluster.gpus_per_node {per_node} when "
                f"generation has GPUs of its own on one node, not {shown(gpus)}"
            )
            reader.findings.append(Finding("error", "layout", message, (key,)))
            return 0, 0
        message = (
            f"{per_node - gpus} GPUs train = {per_node} - {gpus} that only generate ({where}.gpus_per_node)"
        )
        reader.findings.append(Finding("note", "layout", message, (key,)))
        return per_node - gpus, 1
    if own is None or not 0 < own < nodes:
        message = (
            f"{where}.num_nodes must be 1 to {nodes - 1} of cluster.num_nodes {nodes} when generation has "
            f"nodes of its own, not {shown(own)}"
        )
        reader.findings.append(Finding("error", "layout", message, (key,)))
        return 0, 0
    if gpus not in (None, per_node):
        message = (
            f"{where}.gpus_per_node {gpus} must be cluster.gpus_per_node {per_node} or null when generation "
            f"has nodes of its own"
        )
        reader.findings.append(Finding("error", "layout", message, (key,)))
    message = (
        f"{(nodes - own) * per_node} GPUs train = {nodes - own} nodes x {per_node}; {own} of the {nodes} "
        f"nodes only generate ({where}.num_nodes)"
    )
    reader.findings.append(Finding("note", "layout", message, (key,)))
    return per_node, nodes - own


def _rank_order(
    values: dict[str, object], sources: dict[str, str], spelled: dict[str, str], given: str | None
) -> Finding:
    key, shards = "parallel.rank_order", "parallel.tensor_parallel_num_sequence_shards"
    spelled[key] = "--rank-order"
    if given is not None:
        values[key], sources[key] = given, "cli"
        return Finding("note", "layout", f"rank order {given}, as --rank-order says", (key,))
    cut = shards in values
    order = "tp-gtp-cp-dp-pp" if cut else "tp-cp-gtp-dp-pp"
    why = f"{spelled[shards]} is given" if cut else "no sequence shards are given"
    values[key], sources[key] = order, "default"
    message = f"rank order {order} is assumed, because {why}; --rank-order says another one"
    return Finding("note", "layout", message, (key,))


def _evaluation(reader: Reader, spelled: dict[str, str]) -> tuple[int | None, int | None]:
    """(rows of an evaluation batch, of its microbatches) of the algorithms that evaluate with the trainer."""
    whole, micro = (f"{reader.algorithm}.val_{kind}_batch_size" for kind in ("global", "micro"))
    if not any(reader.settings.has(path) for path in (whole, micro)):
        return None, None
    spelled["train.eval_batch_size"], spelled["train.eval_micro_batch_size"] = whole, micro
    return reader.integer(whole), reader.integer(micro)


def _model(reader: Reader) -> Mapping[str, object] | None:
    """The content of config.json where ``policy.model_name`` is a folder on this machine."""
    name = reader.value("policy.model_name")
    if not isinstance(name, str) or not name:
        return None
    path = Path(name) / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        message = f"policy.model_name {name} is no folder with a config.json here: --model gives the model"
        reader.findings.append(Finding("note", "model", message))
        return None
    return content if isinstance(content, dict) else None


def _layers(model: Mapping[str, object] | None) -> int | None:
    layers = (model or {}).get("num_hidden_layers")
    return layers if isinstance(layers, int) else None
