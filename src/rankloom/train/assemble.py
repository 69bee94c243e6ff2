"""From a resolved config to the parts of one rank: device, communicator, model, optimizer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, GenerationConfig

from rankloom.check import model_config_place
from rankloom.checkpoint import CheckpointParameters, verify_shared
from rankloom.checkpoint.manifest import MANIFEST
from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.config.energon import ENERGON
from rankloom.config.examine import Examined
from rankloom.config.rampup import BatchSizes
from rankloom.config.values import ELEMENT_BYTES
from rankloom.data import Counts
from rankloom.data.energon import require_energon
from rankloom.data.prepare import PreparedData, RunData, prepare
from rankloom.errors import RunError, UserError
from rankloom.models import SafetensorsFolder, SeededParameters, ShardedModel, fill
from rankloom.models.sources import ParameterSource
from rankloom.optim import LearningRate, ShardedAdamW
from rankloom.plan import ModelPlan, ModelSpec, Placement, StepShape
from rankloom.train.batches import Batches, PlannedBatches

__all__ = [
    "build_batches",
    "build_model",
    "build_optimizer",
    "connect",
    "learning_rate",
    "load_data",
    "model_plan",
    "num_steps",
    "run_tokens",
    "step_shape",
]

_PROCESS_GROUP_GRACE_S = 120  # the watchdog speaks first; the backend's own timeout is the last resort


def connect(
    resolved: ResolvedConfig, *, rank: int, local_rank: int, init_method: str, activity: Activity
) -> Communicator:
    """Joins the other ranks and makes and verifies the process groups of this one. A collective of all
    ranks."""
    device = _device(resolved, local_rank)
    timeout_s = resolved.comm.timeout_s + _PROCESS_GROUP_GRACE_S
    with activity.waiting("world", "join the ranks", activity.launched("world", "join the ranks")):
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            init_method=init_method,
            rank=rank,
            world_size=resolved.layout.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=None if device.type == "cpu" else device,
        )
    comm = Communicator(resolved.layout, rank, device=device, timeout_s=timeout_s, activity=activity)
    comm.verify()
    return comm


def _device(resolved: ResolvedConfig, local_rank: int) -> torch.device:
    wanted = resolved.cluster.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        where = resolved.where("cluster.device") or "the default"
        raise UserError(
            f"cluster.device is {wanted}, but torch sees no GPU here; set it to cpu or auto, or use "
            f"a torch with CUDA on a machine with GPUs ({where})"
        )
    if local_rank >= count:
        raise UserError(
            f"cluster.device is {wanted}, but local rank {local_rank} has no GPU: this machine has {count}; "
            f"start at most {count} ranks on it or set cluster.device to cpu "
            f"({resolved.where('cluster.device') or 'the default'})"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def load_data(resolved: ResolvedConfig) -> RunData:
    """The data of a run from its source. Raises UserError: see `prepare` and `prepare_energon`."""
    if resolved.data.source != ENERGON:
        return prepare(resolved)
    require_energon()
    from rankloom.data.energon.prepare import prepare_energon  # loads Energon

    return prepare_energon(resolved)


def build_batches(resolved: ResolvedConfig, comm: Communicator, data: RunData, *, is_owner: bool) -> Batches:
    """What this rank trains on; ``is_owner``: it reads for its lane."""
    if isinstance(data, PreparedData):
        return PlannedBatches(resolved, comm, data, is_owner=is_owner)
    from rankloom.data.energon.prepare import EnergonRunData
    from rankloom.train.energon import EnergonBatches

    assert isinstance(data, EnergonRunData)
    return EnergonBatches(resolved, comm, data, is_owner=is_owner)


def num_steps(resolved: ResolvedConfig, batches: Batches) -> int:
    """Optimizer steps of the run; of an Energon data set their number is a setting."""
    if resolved.train.max_steps is not None or batches.planned is None:
        return resolved.train.max_steps or 0
    return batches.planned.stream.num_steps(resolved.train.epochs or 0)


def _config_mapping(resolved: ResolvedConfig) -> Mapping[str, object]:
    if resolved.model.config is not None:
        return resolved.model.config
    content: Mapping[str, object] = json.loads((Path(str(resolved.model.path)) / "config.json").read_text())
    return content


def model_plan(resolved: ResolvedConfig, *, vocab_size: int) -> ModelPlan:
    """The plan of the config's model, with the tokenizer's vocabulary where the config names none."""
    spec = ModelSpec.from_config(_config_mapping(resolved), vocab_size=vocab_size)
    return ModelPlan.build(spec, resolved.layout)


def build_model(
    resolved: ResolvedConfig, plan: ModelPlan, comm: Communicator, data: RunData, *, empty: bool = False
) -> ShardedModel:
    """The sharded model with its parameters: from the model folder or checkpoint, or drawn from train.seed;
    ``empty``: zeros, to be filled in."""
    config = _hf_config(resolved, plan, data)
    try:
        model = ShardedModel(
            plan,
            config,
            comm,
            dtype=getattr(torch, resolved.model.dtype),
            gradient_checkpointing=resolved.train.gradient_checkpointing,
        )
    except UserError as error:
        raise UserError(f"{error} ({_model_place(resolved, str(error))})") from error
    path = resolved.model.path
    if path is not None and (Path(path) / "generation_config.json").is_file():
        model.module.generation_config = GenerationConfig.from_pretrained(path)
    if not empty:
        fill(model, _parameters(resolved, plan, comm, std=config.initializer_range))
    stored = sum(unit.stored.numel() * unit.stored.element_size() for unit in model.stores)
    planned = plan.parameter_bytes(model.small.stored.element_size())
    if stored != planned:
        raise RunError(f"rank {comm.rank} stores {stored} bytes of parameters, the plan says {planned}")
    return model


def _parameters(
    resolved: ResolvedConfig, plan: ModelPlan, comm: Communicator, *, std: float
) -> ParameterSource:
    if resolved.model.path is None:
        return SeededParameters(resolved.train.seed, std=std)
    folder = Path(resolved.model.path)
    if (folder / MANIFEST).is_file():
        try:
            verify_shared(folder, comm)
        except UserError as error:
            raise UserError(f"model.path: {error} ({resolved.where('model.path')})") from error
        return CheckpointParameters(folder)
    return SafetensorsFolder(folder, plan.spec)


def _hf_config(resolved: ResolvedConfig, plan: ModelPlan, data: RunData) -> Any:
    """What transformers has against a model's config is the user's to mend."""
    try:
        return _unchecked_hf_config(resolved, plan, data)
    except Exception as error:  # its validation has exceptions of its own kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        place = _model_place(resolved, reason)
        raise UserError(f"transformers refuses the model's config: {reason} ({place})") from error


def _model_place(resolved: ResolvedConfig, message: str) -> str:
    """Where what ``message`` says about the model's config was written."""
    path = resolved.model.path
    return model_config_place(Examined.of(resolved), message, file=f"{path}/config.json" if path else "")


def _unchecked_hf_config(resolved: ResolvedConfig, plan: ModelPlan, data: RunData) -> Any:
    if resolved.model.path is not None:
        return AutoConfig.from_pretrained(resolved.model.path, local_files_only=True)
    given = copy.deepcopy(dict(resolved.model.config or {}))
    tokens = {
        "vocab_size": plan.spec.vocab_size,
        "pad_token_id": data.tokenizer.pad_token_id,
        "bos_token_id": data.tokenizer.bos_token_id,
        "eos_token_id": data.tokenizer.eos_token_id,
    }
    settings = {**tokens, **{k: v for k, v in given.items() if v is not None}}
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def build_optimizer(resolved: ResolvedConfig, model: ShardedModel) -> ShardedAdamW:
    """AdamW on this rank's pieces, fed by the model's reductions."""
    section = resolved.optimizer
    optimizer = ShardedAdamW(
        model.units,
        model.small,
        model.comm,
        decays=_decay_rule(resolved, model.plan),
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        clip_grad=section.clip_grad,
    )
    model.reducer.on_complete = optimizer.launch_reduction
    return optimizer


def _decay_rule(resolved: ResolvedConfig, plan: ModelPlan) -> Callable[[Placement], bool]:
    """Linears and embeddings decay, norms and biases do not; ``optimizer.no_decay`` replaces the rule."""
    globs = resolved.optimizer.no_decay
    if not globs:
        return lambda placement: placement.sharded
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in plan.placements):
            raise UserError(
                f"optimizer.no_decay: {glob!r} matches no parameter of the model; names look like "
                f"{', '.join(list(plan.placements)[:2])} ({resolved.where('optimizer.no_decay')})"
            )
    return lambda placement: not any(fnmatchcase(placement.name, glob) for glob in globs)


def run_tokens(batches: Batches, *, max_steps: int, consumed: Counts) -> int:
    """Tokens of the whole run; ``consumed``: before the first step of ``batches``."""
    assert batches.planned is not None, "an open end needs rows that are known before"
    return consumed.tokens + batches.planned.stream.tokens_through(max_steps)


def learning_rate(resolved: ResolvedConfig, *, max_steps: int, tokens: Callable[[], int]) -> LearningRate:
    """The schedule; its end left open is all samples, or ``tokens``, of the run.

    Raises UserError where a schedule over tokens turns out to be shorter than its parts.
    """
    section = resolved.schedule
    warmup, whole, wsd = section.parts
    if whole is None and section.decay != "constant":
        samples = section.unit == "samples"
        train = resolved.train
        sizes = BatchSizes(train.global_batch_size, train.rampup_batch_size)
        whole = sizes.samples_of(max_steps) if samples else tokens()
        if not samples and warmup + (wsd or 0) > whole:
            raise UserError(
                f"schedule.warmup_tokens {warmup}{f' + schedule.wsd_decay_tokens {wsd}' if wsd else ''} is "
                f"larger than the run's {whole} tokens; set schedule.decay_tokens, or train longer "
                f"({resolved.where('schedule.warmup_tokens', 'schedule.wsd_decay_tokens')})"
            )
    return LearningRate(
        peak=resolved.optimizer.lr,
        minimum=section.min_lr,
        decay=section.decay,
        warmup_samples=warmup,
        decay_samples=whole or 0,
        wsd_decay_samples=wsd or 0,
        unit=section.unit,
    )


def step_shape(resolved: ResolvedConfig, *, num_microbatches: int | None = None) -> StepShape:
    """What one step works on, for the plan of its collectives; ``num_microbatches`` of a step with another
    batch size than the last ones have."""
    return StepShape(
        micro_batch_size=resolved.train.micro_batch_size,
        num_microbatches=num_microbatches or resolved.batch.num_microbatches,
        sequence_length=resolved.data.max_seq_length,
        element_size=ELEMENT_BYTES[resolved.model.dtype],
        gradient_checkpointing=resolved.train.gradient_checkpointing,
    )
