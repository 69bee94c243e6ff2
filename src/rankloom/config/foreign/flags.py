"""The arguments of Megatron-LM that are read, as data: name, kind of value, and the key of ours they give.

Its parser takes no shortened names and knows each argument with hyphens only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

__all__ = ["DEFAULTS", "EXPERT_FLAGS", "FLAGS", "KEYS", "REPLACED", "Kind", "name_of"]

Kind = Literal["integer", "integers", "number", "switch", "text", "texts"]


def _of_kind(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


FLAGS: Mapping[str, Kind] = MappingProxyType(
    {
        **_of_kind(
            "integer",
            """tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
            tensor-parallel-num-weight-shards tensor-parallel-num-sequence-shards
            expert-tensor-parallel-num-weight-shards expert-model-parallel-size expert-tensor-parallel-size
            num-experts micro-batch-size global-batch-size seq-length num-layers hidden-size ffn-hidden-size
            num-attention-heads num-query-groups kv-channels vocab-size padded-vocab-size
            make-vocab-size-divisible-by max-position-embeddings rotary-base train-iters train-samples
            eval-iters eval-interval save-interval num-layers-per-virtual-pipeline-stage
            num-virtual-stages-per-pipeline-rank decoder-first-pipeline-num-layers
            decoder-last-pipeline-num-layers recompute-num-layers moe-ffn-hidden-size lr-decay-iters
            lr-warmup-iters lr-decay-samples lr-warmup-samples mtp-num-layers""",
        ),
        **_of_kind(
            "number",
            """lr min-lr lr-warmup-fraction norm-epsilon init-method-std rotary-percent
            rope-scaling-factor""",
        ),
        **_of_kind(
            "switch",
            """sequence-parallel group-query-attention swiglu disable-bias-linear add-qkv-bias qk-layernorm
            untie-embeddings-and-output-weights bf16 fp16 use-rotary-position-embeddings squared-relu
            quick-geglu multi-latent-attention apply-layernorm-1p use-rope-scaling rotary-interleaved
            use-tp-pp-dp-mapping use-megatron-fsdp use-torch-fsdp2 use-custom-fsdp use-distributed-optimizer
            tp-comm-overlap overlap-grad-reduce overlap-param-gather recompute-activations
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
            gtp-remat-fold-cp fold-whole-cp""",
        ),
        **_of_kind(
            "text",
            """normalization position-embedding-type lr-decay-style save data-parallel-sharding-strategy
            recompute-granularity recompute-method tokenizer-type pipeline-model-parallel-layout""",
        ),
        **_of_kind("texts", "data-path cp-comm-type recompute-modules"),
        **_of_kind("integers", "rampup-batch-size hierarchical-context-parallel-sizes"),
    }
)

# Which key of ours an argument gives as it is.
KEYS: Mapping[str, str] = MappingProxyType(
    {
        "tensor-model-parallel-size": "parallel.tensor_model_parallel_size",
        "sequence-parallel": "parallel.sequence_parallel",
        "tensor-parallel-num-weight-shards": "parallel.tensor_parallel_num_weight_shards",
        "tensor-parallel-num-sequence-shards": "parallel.tensor_parallel_num_sequence_shards",
        "context-parallel-size": "parallel.context_parallel_size",
        "pipeline-model-parallel-size": "parallel.pipeline_model_parallel_size",
        "micro-batch-size": "train.micro_batch_size",
        "global-batch-size": "train.global_batch_size",
        "seq-length": "data.max_seq_length",
    }
)
# What Megatron-LM takes when an argument is not given.
DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "tensor-model-parallel-size": 1,
        "sequence-parallel": False,
        "context-parallel-size": 1,
        "pipeline-model-parallel-size": 1,
    }
)
EXPERT_FLAGS = (
    "num-experts",
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
    "expert-tensor-parallel-num-weight-shards",
)
# Arguments that Megatron-LM stops at, and what took their place.
REPLACED: Mapping[str, str] = MappingProxyType(
    {
        "model-parallel-size": "tensor-model-parallel-size",
        "batch-size": "micro-batch-size",
        "warmup": "lr-warmup-fraction",
        "checkpoint-activations": "recompute-activations",
    }
)


def name_of(word: str) -> str:
    """The name in "--seq_length=4096": "seq-length"; "" if the word is no argument's name."""
    if not word.startswith("--") or len(word) < 4:
        return ""
    return word[2:].partition("=")[0].replace("_", "-")
