#!/bin/bash
# A Megatron-LM job on two nodes, for `rankloom check --from megatron`: 8 weight shards, of which
# sequence parallelism and two more cut the sequence, and context parallelism on top.
set -e

GPUS_PER_NODE=8
NUM_NODES=2

PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --sequence-parallel
    --tensor-parallel-num-weight-shards 8
    --tensor-parallel-num-sequence-shards 4
    --context-parallel-size 2
)
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --tokenizer-type NullTokenizer
    --vocab-size 128255
    --max-position-embeddings 32768
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 63
    --seq-length 32768
    --train-iters 5000
    --lr 1.0e-5
    --bf16
)

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    ${PARALLEL_ARGS[@]} ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
