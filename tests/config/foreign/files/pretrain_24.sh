#!/bin/bash
# 24 GPUs on three nodes: TP 4, each weight in 12 parts.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-3}
MASTER_ADDR=${MASTER_ADDR:-localhost}

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NUM_NODES \
    --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:6000" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 4 --sequence-parallel \
    --tensor-parallel-num-weight-shards 12 \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --rotary-base 500000 \
    --untie-embeddings-and-output-weights \
    --tokenizer-type NullTokenizer --vocab-size 128256 \
    --seq-length 8192 --max-position-embeddings 8192 \
    --micro-batch-size 1 --global-batch-size 48 \
    --train-iters 1000 --lr 3.0e-4 --min-lr 3.0e-5 --bf16 \
    --save /checkpoints/run --save-interval 500 2>&1 | tee logs/train.log
