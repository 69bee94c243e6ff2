#!/bin/bash
#SBATCH --job-name=moe
#SBATCH --nodes=8            # 64 GPUs
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00

set -euo pipefail

CHECKPOINT_PATH=$1           # the folder of the run
DATA_PATH="${DATA_PATH:-/data/text_document}"

SIZE=${SIZE:-medium}
TP=2
EP=8
PP=2
MICRO_BATCH=1

if [[ "$SIZE" == "large" ]]; then
    NUM_LAYERS=64
    HIDDEN=8192
elif [[ "$SIZE" == "medium" ]]; then
    NUM_LAYERS=32
    HIDDEN=4096
else
    echo "unknown size $SIZE" >&2
    exit 1
fi

MODEL_ARGS=(
    --num-layers $NUM_LAYERS
    --hidden-size $HIDDEN
    --num-attention-heads 32   # of 128
    --group-query-attention
    --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --position-embedding-type rope
)
MOE_ARGS=(
    --num-experts 64
    --expert-model-parallel-size ${EP}
    --expert-tensor-parallel-size 1
    --moe-router-topk 2
    --moe-token-dispatcher-type alltoall
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
    --use-distributed-optimizer
)
TRAINING_ARGS=(
    --micro-batch-size ${MICRO_BATCH}
    --global-batch-size $((MICRO_BATCH * 8 * SLURM_NTASKS))
    --train-samples 24000000
    --lr 1e-4 --min-lr 1e-5
    --bf16
)
TRAINING_ARGS+=(--save "$CHECKPOINT_PATH" --save-interval 1000)
DATA_ARGS="--data-path $DATA_PATH --split 99,1,0"

if [ -n "${WANDB_API_KEY:-}" ]; then
    LOGGING_ARGS=(--wandb-project moe)
else
    LOGGING_ARGS=(--log-interval 10)
fi

srun --label bash -c "
    python -u pretrain_gpt.py \
        ${MODEL_ARGS[*]} ${MOE_ARGS[*]} \
        ${PARALLEL_ARGS[*]} ${TRAINING_ARGS[*]} ${DATA_ARGS} ${LOGGING_ARGS[*]} ${EXTRA_ARGS}
"
