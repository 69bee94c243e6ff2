"""Which keys are settings, and what to say about one that is not."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher, get_close_matches
from types import MappingProxyType

from rankloom.config.schema import SECTIONS, ParallelSection

__all__ = ["MODEL_CONFIG", "KEYS", "explain_unknown"]

MODEL_CONFIG = "model.config"  # a free mapping: any key below it is a key of the model's config.json

KEYS: tuple[str, ...] = tuple(f"{s}.{key}" for s, section in SECTIONS.items() for key in section.model_fields)

# What people coming from other programs write, and the setting that means the same or decides it here.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "learning_rate": "optimizer.lr",
        "max_grad_norm": "optimizer.clip_grad",
        "adam_eps": "optimizer.eps",
        "adam_epsilon": "optimizer.eps",
        "adam_beta1": "optimizer.betas",
        "adam_beta2": "optimizer.betas",
        "lr_decay_style": "schedule.decay",
        "lr_scheduler_type": "schedule.decay",
        "lr_warmup_samples": "schedule.warmup_samples",
        "warmup_steps": "schedule.warmup_samples",
        "lr_decay_samples": "schedule.decay_samples",
        "lr_wsd_decay_samples": "schedule.wsd_decay_samples",
        "batch_size": "train.global_batch_size",
        "per_device_train_batch_size": "train.micro_batch_size",
        "train_iters": "train.max_steps",
        "num_train_epochs": "train.epochs",
        "recompute_activations": "train.gradient_checkpointing",
        "seq_length": "data.max_seq_length",
        "seq_len": "data.max_seq_length",
        "max_seq_len": "data.max_seq_length",
        "sequence_length": "data.max_seq_length",
        "max_length": "data.max_seq_length",
        "train_data_path": "data.train",
        "tensor_parallel_size": "parallel.tensor_model_parallel_size",
        "pipeline_parallel_size": "parallel.pipeline_model_parallel_size",
        "save_interval": "checkpoint.save_every",
        "save_steps": "checkpoint.save_every",
        "eval_interval": "train.eval_every",
        "eval_steps": "train.eval_every",
        "output_dir": "checkpoint.dir",
        "tensorboard_dir": "logging.tensorboard",
        "wandb_project": "logging.wandb",
        "dataloader_num_workers": "data.num_workers",
        "nproc_per_node": "cluster.world_size",
        "num_gpus": "cluster.world_size",
        "model_type": "model.config.model_type",
        "vocab_size": "model.config.vocab_size",
        "hidden_size": "model.config.hidden_size",
        "intermediate_size": "model.config.intermediate_size",
        "num_hidden_layers": "model.config.num_hidden_layers",
        "num_attention_heads": "model.config.num_attention_heads",
        "num_key_value_heads": "model.config.num_key_value_heads",
    }
)

# What people look for and no setting here means.
NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("gradient_accumulation_steps", "grad_accumulation_steps", "accumulate_grad_batches"),
            "it follows from train.global_batch_size, train.micro_batch_size and the lanes of the layout",
        ),
        **dict.fromkeys(
            ("nodes", "nnodes", "num_nodes"),
            "cluster.world_size is the number of ranks on all machines, which torchrun starts",
        ),
        **dict.fromkeys(
            ("expert_model_parallel_size", "expert_tensor_parallel_size", "expert_parallel_size"),
            "expert parallelism is not supported",
        ),
        **dict.fromkeys(
            (
                "eval",
                "evaluation",
                *(f"eval_{key}" for key in ("parallel", *ParallelSection.model_fields, "world_size")),
                *(f"validation_{key}" for key in ParallelSection.model_fields),
            ),
            "evaluation runs in the layout of training (parallel section); its own settings are "
            "train.eval_every, train.eval_batch_size and data.validation",
        ),
        **dict.fromkeys(
            ("eval_micro_batch_size", "per_device_eval_batch_size"),
            "evaluation takes train.micro_batch_size rows at a time; train.eval_batch_size is over all lanes",
        ),
    }
)


def explain_unknown(path: str) -> str:
    """Why ``path`` (as written: "train.learning_rte", "lr", "optimiser") is refused, and what is near it."""
    section, _, name = path.rpartition(".")
    if section in KEYS:
        return f"{path} is not a setting; {section} is one, with nothing below it"
    if section in NOT_HERE:  # eval.context_parallel_size
        return f"{path} is not a setting; {NOT_HERE[section]}"
    owners = [s for s, fields in SECTIONS.items() if name in fields.model_fields]
    if owners:
        where = " or ".join(f"{s}.{name}" for s in owners)
        return f"{path} is not a setting; {name} belongs in the {' or '.join(owners)} section: {where}"
    if name in NOT_HERE:
        return f"{path} is not a setting; {NOT_HERE[name]}"
    if name in ELSEWHERE:
        return f"{path} is not a setting; here it is {ELSEWHERE[name]}"
    if not section and (close := get_close_matches(name, SECTIONS, n=1)):
        return f"{path} is not a section; did you mean {close[0]}?"
    return f"{path} is not a setting; {_suggestion(section, name)}"


def _suggestion(section: str, name: str) -> str:
    scores = {key: _likeness(name, key, section=section) for key in (*KEYS, *ELSEWHERE)}
    best = max(scores, key=lambda key: scores[key])
    if scores[best] >= 0.6:
        return (
            f"did you mean {best}, which is {ELSEWHERE[best]} here?"
            if best in ELSEWHERE
            else f"did you mean {best}?"
        )
    if section in SECTIONS:
        return f"settings of {section}: {', '.join(SECTIONS[section].model_fields)}"
    return f"sections: {', '.join(SECTIONS)}"


def _likeness(name: str, key: str, *, section: str) -> float:
    """0 to 1, with a little extra for a key of the section the name was written in."""
    key_section, _, key_name = key.rpartition(".")
    likeness = SequenceMatcher(None, name, key_name).ratio()
    return likeness + (0.1 if key_section and key_section == section else 0.0)
