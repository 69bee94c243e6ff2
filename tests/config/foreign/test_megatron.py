"""Megatron-LM jobs in our keys: exact values, where they came from, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.check import look_at
from rankloom.config.examine_foreign import examine_foreign
from rankloom.config.foreign import ForeignJob, read_foreign
from rankloom.layout import GTPParallelLayout
from rankloom.plan import ModelSpec
from rankloom.plan.config_fields import refuse_unknown_fields

FILES = Path(__file__).parent / "files"
LINE = "torchrun --nproc-per-node 8 pretrain_gpt.py"


def line(arguments: str, launch: str = LINE, rank_order: str | None = None) -> ForeignJob:
    return read_foreign("megatron", f"{launch} {arguments}", rank_order=rank_order)


def values(job: ForeignJob) -> dict[str, object]:
    return {f"{section}.{key}": v for section, body in job.mapping.items() for key, v in body.items()}


def texts(job: ForeignJob, severity: str) -> list[str]:
    return [f.text for f in job.findings if f.severity == severity]


def script(tmp_path: Path, text: str, name: str = "train.sh") -> ForeignJob:
    path = tmp_path / name
    path.write_text(text)
    job = read_foreign("megatron", str(path))
    assert job.origin == str(path)
    return job


def test_24_ranks_with_weights_in_12_parts() -> None:
    job = read_foreign("megatron", str(FILES / "pretrain_24.sh"))
    assert values(job) == {
        "parallel.tensor_model_parallel_size": 4,
        "parallel.sequence_parallel": True,
        "parallel.tensor_parallel_num_weight_shards": 12,
        "parallel.context_parallel_size": 1,
        "parallel.pipeline_model_parallel_size": 1,
        "parallel.rank_order": "tp-cp-gtp-dp-pp",
        "train.micro_batch_size": 1,
        "train.global_batch_size": 48,
        "data.max_seq_length": 8192,
        "cluster.world_size": 24,
        "cluster.gpus_per_node": 8,
    }
    assert not texts(job, "error")
    assert not texts(job, "warning")
    assert "--nnodes 3" in job.read
    assert job.spelled["parallel.context_parallel_size"] == "--context-parallel-size"
    assert job.sources["parallel.context_parallel_size"] == "default"
    assert job.sources["cluster.world_size"] == "file"
    assert job.model == {
        "model_type": "llama",
        "vocab_size": 128512,  # 128256 + 1, to a multiple of 128 x 4
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
    }


def test_a_batch_script_with_arrays_branches_and_experts() -> None:
    path = FILES / "moe_slurm.sh"
    job = read_foreign("megatron", str(path))
    found = values(job)
    assert (found["cluster.world_size"], found["cluster.gpus_per_node"]) == (64, 8)
    assert found["train.global_batch_size"] == 512  # 1 x 8 x 64 tasks
    assert found["parallel.pipeline_model_parallel_size"] == 2
    assert texts(job, "error") == []
    assert texts(job, "warning") == [
        f"experts are not modelled: --num-experts 64, --expert-model-parallel-size 8, "
        f"--expert-tensor-parallel-size 1; weights, bytes and groups of expert layers are not shown "
        f"({path}:72)"
    ]
    assert job.ignored == ("--moe-router-topk", "--moe-token-dispatcher-type", "--split", "--log-interval")
    assert "--save $1" in job.read
    notes = texts(job, "note")
    assert f"$EXTRA_ARGS is not known in {path}: arguments that it would add are not seen here" in notes
    assert (
        f"""if [[ "$SIZE" == "large" ]]: the branch 'elif [[ "$SIZE" == "medium" ]]' was taken: """
        f"""HIDDEN=4096 (another branch: HIDDEN=8192), NUM_LAYERS=32 """
        f"""(another branch: NUM_LAYERS=64) ({path}:19)"""
    ) in notes


def test_defaults_are_those_of_megatron() -> None:
    job = line("--tensor-model-parallel-size 2")
    assert values(job) == {
        "parallel.tensor_model_parallel_size": 2,
        "parallel.sequence_parallel": False,
        "parallel.context_parallel_size": 1,
        "parallel.pipeline_model_parallel_size": 1,
        "parallel.rank_order": "tp-cp-gtp-dp-pp",
        "cluster.world_size": 8,
        "cluster.gpus_per_node": 8,
    }
    assert job.sources["parallel.sequence_parallel"] == "default"
    assert job.origin == "the command line"


@pytest.mark.parametrize(
    ("launch", "world", "per_node"),
    [
        ("torchrun --nproc-per-node 8 train.py", 8, 8),
        ("torchrun --nproc_per_node=8 --nnodes 3 train.py", 24, 8),
        ("python -m torch.distributed.launch --nproc_per_node 4 --nnodes=2 train.py", 8, 4),
        ("python3 -u -m torch.distributed.run --nproc-per-node=4 train.py", 4, 4),
        ("srun -N 4 --ntasks-per-node 8 python train.py", 32, 8),
        ("srun -N2 -n16 python train.py", 16, 8),
        ("srun --ntasks=16 --label python -u train.py", 16, None),
        ("mpirun -np 16 python train.py", 16, None),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 2 train.py", 2, 2),
        ("srun -N 4 torchrun --nnodes 4 --nproc-per-node 8 train.py", 32, 8),
        ("/usr/bin/torchrun --nproc-per-node 2 /opt/megatron/train.py", 2, 2),
        ("deepspeed --num_gpus 8 --num_nodes=2 train.py", 16, 8),
        ("deepspeed --num_nodes=2 train.py", None, None),
        ("python train.py", None, None),
    ],
)
def test_ranks_of_a_launcher(launch: str, world: int | None, per_node: int | None) -> None:
    found = values(line("--tensor-model-parallel-size 2", launch))
    assert (found.get("cluster.world_size"), found.get("cluster.gpus_per_node")) == (world, per_node)


def test_launchers_that_leave_the_ranks_open() -> None:
    elastic = line("--bf16", "torchrun --nproc-per-node 8 --nnodes 1:4 train.py")
    assert values(elastic)["cluster.world_size"] == 32
    assert texts(elastic, "warning") == [
        "--nnodes 1:4 lets the job have 1 to 4 nodes; 32 ranks = 8 x 4 are shown, and the layout of fewer "
        "nodes is another one; --world-size shows another number"
    ]
    unset = line("--bf16", "torchrun --nproc-per-node $GPUS train.py")
    assert "cluster.world_size" not in values(unset)
    assert texts(unset, "warning") == [
        "how many ranks there are is not known: nproc-per-node is $GPUS, and GPUS is not set in the command "
        "line; give --world-size"
    ]
    alone = line("--bf16", "srun -N 4 torchrun --nproc-per-node 8 train.py")
    assert texts(alone, "warning") == [
        "srun starts torchrun 4 times and none of them has --nnodes, so each is a job of its own with 8 "
        "ranks; set --nnodes 4 and a rendezvous"
    ]
    machine = line("--bf16", "torchrun --nproc-per-node gpu train.py")
    assert texts(machine, "warning")[0].endswith(
        "nproc-per-node is gpu, and that depends on the machine; give --world-size"
    )


def test_rank_order() -> None:
    key = "parallel.rank_order"
    plain, shards = line("--bf16"), line("--tensor-parallel-num-sequence-shards 2")
    assert values(plain)[key] == "tp-cp-gtp-dp-pp"
    assert values(shards)[key] == "tp-gtp-cp-dp-pp"
    assert (
        "rank order tp-gtp-cp-dp-pp is assumed, because --tensor-parallel-num-sequence-shards is given; "
        "--rank-order says another one"
    ) in texts(shards, "note")
    given = line("--tensor-parallel-num-sequence-shards 2", rank_order="tp-cp-gtp-dp-pp")
    assert values(given)[key] == "tp-cp-gtp-dp-pp"
    assert given.sources[key] == "cli"
    assert not [f for f in given.findings if f.keys == (key,)]


def test_the_older_spellings_are_translated() -> None:
    job = line("--tensor-parallel-num-weight-shards 4 --context-parallel-size 8 --gtp-remat-fold-cp")
    parallel = job.mapping["parallel"]
    assert parallel["tensor_parallel_num_weight_shards"] == 4
    assert parallel["tensor_parallel_num_sequence_shards"] == 4
    assert parallel["context_parallel_size"] == 2
    assert parallel["rank_order"] == "tp-gtp-cp-dp-pp"
    assert (
        "--gtp-remat-fold-cp means tensor_parallel_num_weight_shards 4, "
        "tensor_parallel_num_sequence_shards 4, context_parallel_size 2 (the command line)"
    ) in texts(job, "note")
    assert job.spelled["parallel.context_parallel_size"] == "--context-parallel-size with --gtp-remat-fold-cp"
    assert "--gtp-remat-fold-cp" in job.read

    whole = line("--tensor-parallel-num-weight-shards 4 --context-parallel-size 2 --fold-whole-cp")
    parallel = whole.mapping["parallel"]
    assert [
        parallel[f"{name}"]
        for name in (
            "tensor_parallel_num_weight_shards",
            "tensor_parallel_num_sequence_shards",
            "context_parallel_size",
        )
    ] == [8, 2, 1]


def test_a_folded_job_keeps_its_lanes() -> None:
    """Every rank has the lane and context it had in the unfolded job numbered tp-cp-gtp-dp-pp."""
    arguments = "--tensor-model-parallel-size 2 --sequence-parallel --tensor-parallel-num-weight-shards 4"
    job = line(f"{arguments} --context-parallel-size 2 --fold-whole-cp", f"{LINE.replace('8', '16')}")
    folded = GTPParallelLayout.resolve(world_size=16, **job.mapping["parallel"])  # type: ignore[arg-type]
    # rank = tp + 2 (cp + 2 (gtp + 2 dp)): the lane is dp x 2 + gtp, the context cp
    for rank in range(16):
        assert folded.lane(rank) == rank // 4


def test_folding_twice_or_beside_today_s_setting_is_an_error() -> None:
    both = line("--context-parallel-size 2 --gtp-remat-fold-cp --fold-whole-cp")
    assert texts(both, "error") == [
        "--gtp-remat-fold-cp and --fold-whole-cp say different things; give one of them (the command line)"
    ]
    beside = line("--context-parallel-size 2 --fold-whole-cp --tensor-parallel-num-sequence-shards 2")
    assert texts(beside, "error") == [
        "--fold-whole-cp is an older way to say --tensor-parallel-num-sequence-shards; give one of them "
        "(the command line)"
    ]


def test_arguments_as_argparse_takes_them(tmp_path: Path) -> None:
    job = script(tmp_path, f"{LINE} --seq-length=4096 --seq-length 2048 --micro_batch_size 2 --foo 1 2 --bar")
    where = f"{tmp_path}/train.sh:1"
    assert values(job)["data.max_seq_length"] == 2048
    assert values(job)["train.micro_batch_size"] == 2
    assert job.ignored == ("--foo", "--bar")
    assert (
        f"--seq-length 4096 ({where}) is given again: --seq-length 2048 holds, because the last one does "
        f"({where})"
    ) in texts(job, "note")
    assert texts(job, "warning") == [
        "Megatron-LM knows no --micro_batch_size, only --micro-batch-size with hyphens, and stops there; "
        f"it was read as --micro-batch-size ({where})"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seq-len 4096", "--seq-len is no argument that is known here, and Megatron-LM takes no shortened "
         "names and stops there; did you mean --seq-length?"),
        ("--batch-size 4", "Megatron-LM stops at --batch-size; use --micro-batch-size instead"),
        ("--seq-length four", "--seq-length must be a whole number, not 'four'"),
        ("--seq-length --bf16", "--seq-length must be a whole number, and none follows"),
        ("--micro-batch-size $MBS",
         "--micro-batch-size $MBS: MBS is not set in the command line; set it there, for example MBS=8"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_read(arguments: str, message: str) -> None:
    job = line(f"--bf16 {arguments}")
    assert texts(job, "error") == [f"{message} (the command line)"]
    assert "data.max_seq_length" not in values(job)


def test_a_name_that_is_nearly_right_is_a_warning() -> None:
    job = line("--bf16 --contextparallel-size 2")
    assert texts(job, "warning") == [
        "--contextparallel-size is no argument that is known here, and it is not read; "
        "did you mean --context-parallel-size? (the command line)"
    ]


def test_unset_variables_that_do_not_matter_are_no_error() -> None:
    job = line("--bf16 --save $DIR --save-interval 10 --data-path $DATA --wandb-project $P --lr $LR")
    assert texts(job, "error") == []
    assert "--save $DIR" in job.read
    assert any(text.startswith("--lr $LR: LR is not set") for text in texts(job, "note"))


def test_a_plain_list_of_arguments(tmp_path: Path) -> None:
    job = script(
        tmp_path, "# a run\n--tensor-model-parallel-size 2\n--micro-batch-size 4\n--bf16\n", "args.txt"
    )
    assert values(job)["parallel.tensor_model_parallel_size"] == 2
    assert values(job)["train.micro_batch_size"] == 4
    assert "cluster.world_size" not in values(job)


def test_a_file_of_settings_without_the_command(tmp_path: Path) -> None:
    job = script(tmp_path, 'D="--nproc_per_node 8 --nnodes 2"\nA=(\n --context-parallel-size 2\n --bf16 )\n')
    assert values(job)["parallel.context_parallel_size"] == 2
    assert values(job)["cluster.world_size"] == 16
    assert "no command was found that uses the arguments; all that are set in the file are read" in texts(
        job, "note"
    )


def test_two_training_commands(tmp_path: Path) -> None:
    job = script(
        tmp_path, f"{LINE} --bf16 --seq-length 8\n\n{LINE} --bf16 --seq-length 16 --micro-batch-size 1\n"
    )
    assert values(job)["data.max_seq_length"] == 16
    assert (
        f"{tmp_path}/train.sh has 2 training commands, in lines 1 and 3; that of line 3 is read"
    ) in texts(job, "note")


def test_sourced_files_are_named_when_something_is_missing(tmp_path: Path) -> None:
    job = script(tmp_path, f"source env.sh\n{LINE} --micro-batch-size $MBS\n")
    assert "settings that the script reads from env.sh are not looked at" in texts(job, "note")


@pytest.mark.parametrize(
    "text",
    [
        "tensor_model_parallel_size: 2\ncontext-parallel-size: 4\nsequence_parallel: true\nseq_length: 4096\n"
        "tokenizer_path: /x\n",
        "model:\n  tensor_model_parallel_size: 2\n  context_parallel_size: 4\n  sequence_parallel: true\n"
        "  seq_length: 4096\ntrain: {tokenizer_path: /x}\n",
        "ENV_VARS: {A: 1}\nMODEL_ARGS:\n  --tensor-model-parallel-size: 2\n  --context-parallel-size: 4\n"
        "  --sequence-parallel: true\n  --seq-length: 4096\n",
    ],
)
def test_yaml_of_arguments(tmp_path: Path, text: str) -> None:
    job = script(tmp_path, text, "job.yaml")
    found = values(job)
    assert found["parallel.tensor_model_parallel_size"] == 2
    assert found["parallel.context_parallel_size"] == 4
    assert found["parallel.sequence_parallel"] is True
    assert found["data.max_seq_length"] == 4096
    assert len(job.ignored) == 1
    assert not texts(job, "error")
    assert not texts(job, "warning")


IDIOMS = """#!/bin/bash
TOKENIZER_ARG=${1:-MOCK}
DATA_ARG=${2:-"/data/my text"}
SCRIPT="pretrain_gpt.py"
mkdir -p "$(dirname "$TOKENIZER_ARG")"
NODES=2
DISTRIBUTED_ARGS="
    --nproc_per_node 4 \\
    --nnodes $NODES
"
ARGS=(
    --micro-batch-size 2   # rows
    # --micro-batch-size 4
    --seq-length $((1024 * NODES))
)
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$DATA_ARG" ]]; then
    ARGS+=("--vocab-size 1000" "--split '99,1,0'")
else
    ARGS+=("--data-path $DATA_ARG")
fi
if grep -q "fp8" <<< "${ARGS[@]}" && true; then
    echo no
    exit 1
fi
run_cmd="python -m torch.distributed.run ${DISTRIBUTED_ARGS} ${PWD}/$SCRIPT $@ ${ARGS[*]}"
cat <<EOT > config.json
{ "x": "--micro-batch-size 8" }
EOT
echo "$run_cmd"
set -x; ${run_cmd} --bf16 2>&1 | tee log.txt
"""


def test_idioms_of_launch_scripts(tmp_path: Path) -> None:
    job = script(tmp_path, IDIOMS)
    found = values(job)
    assert found["cluster.world_size"] == 8
    assert found["train.micro_batch_size"] == 2
    assert found["data.max_seq_length"] == 2048
    assert "--vocab-size 1000" in job.read
    assert "--bf16" in job.read
    assert job.ignored == ("--split",)
    assert any(text.startswith("$@ is not known in ") for text in texts(job, "note"))
    assert not texts(job, "error")


def test_each_argument_is_read_or_ignored() -> None:
    names = ("--bf16", "--lr", "--moe-router-topk", "--fp8-format", "--use-distributed-optimizer")
    job = line("--bf16 --lr 1e-4 --moe-router-topk 2 --fp8-format hybrid --use-distributed-optimizer")
    read = {text.split()[0] for text in job.read}
    assert [(n in read) + (n in job.ignored) for n in names] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--num-layers 30 --pipeline-model-parallel-size 4",
         "--num-layers 30 is not a multiple of --pipeline-model-parallel-size 4; try "
         "--pipeline-model-parallel-size 3 or 5, or --num-layers 28 or 32"),
        ("--num-layers 32 --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split",
         "--num-layers 32 + 1 for the embedding is not a multiple of --pipeline-model-parallel-size 4; try "
         "--pipeline-model-parallel-size 3 or 11, or --num-layers 31 or 35"),
        ("--num-layers 32 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7",
         "--num-layers 32 - --decoder-first-pipeline-num-layers 7 = 25 does not divide over the other 3 "
         "stages; try --num-layers 31"),
        ("--num-layers 32 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
         "8 layers of a pipeline stage are not a multiple of --num-layers-per-virtual-pipeline-stage 3; "
         "try 2 or 4"),
        ("--num-attention-heads 30 --tensor-model-parallel-size 4",
         "--num-attention-heads 30 is not a multiple of --tensor-model-parallel-size 4; try "
         "--tensor-model-parallel-size 3 or 5"),
        ("--num-attention-heads 32 --group-query-attention --num-query-groups 2 "
         "--tensor-model-parallel-size 4",
         "--num-query-groups 2 is not a multiple of --tensor-model-parallel-size 4; try "
         "--tensor-model-parallel-size 2"),
        ("--num-attention-heads 32 --group-query-attention --num-query-groups 5",
         "--num-attention-heads 32 is not a multiple of --num-query-groups 5; try --num-query-groups 4 or 8"),
        ("--hidden-size 4097 --num-attention-heads 32",
         "--hidden-size 4097 is not a multiple of --num-attention-heads 32; try 4096 or 4128, or give "
         "--kv-channels"),
        ("--ffn-hidden-size 1001 --tensor-model-parallel-size 2",
         "--ffn-hidden-size 1001 is not a multiple of --tensor-model-parallel-size 2; try "
         "--tensor-model-parallel-size 1 or 7"),
        ("--context-parallel-size 8 --hierarchical-context-parallel-sizes 2 2",
         "--hierarchical-context-parallel-sizes 2 x 2 = 4 is not --context-parallel-size 8"),
        ("--context-parallel-size 8 --cp-comm-type a2a+p2p",
         "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes"),
        ("--tp-comm-overlap --tensor-model-parallel-size 2",
         "--tp-comm-overlap needs --sequence-parallel, which is off unless given"),
        ("--seq-length 4096 --max-position-embeddings 2048",
         "--max-position-embeddings 2048 is smaller than --seq-length 4096; try 4096"),
        ("--global-batch-size 100 --rampup-batch-size 16 16 1000",
         "--global-batch-size 100 - 16 is not a multiple of the increment 16 of --rampup-batch-size; try "
         "--global-batch-size 96"),
        ("--train-iters 10 --train-samples 100",
         "--train-iters and --train-samples exclude each other; give one of them"),
        ("--lr 1e-4 --min-lr 1e-3", "--min-lr 0.001 is larger than --lr 0.0001; try 0.0001 or less"),
        ("--save /x", "--save needs --save-interval, which is not given"),
        ("--bf16 --fp16", "--bf16 and --fp16 exclude each other; give one of them"),
        ("--overlap-param-gather", "--overlap-param-gather needs --overlap-grad-reduce, which is not given"),
        ("--num-experts 6 --expert-model-parallel-size 4",
         "--num-experts 6 is not a multiple of --expert-model-parallel-size 4; try "
         "--expert-model-parallel-size 3 or 6, or --num-experts 4 or 8"),
        ("--expert-model-parallel-size 4",
         "--expert-model-parallel-size 4 needs --num-experts, which is not given"),
        ("--num-experts 12 --expert-model-parallel-size 3",
         "world size 8 is not a multiple of 3 = --expert-tensor-parallel-size 1 x "
         "--expert-model-parallel-size 3 x --pipeline-model-parallel-size 1; try a world size of 6 or 9"),
        ("--num-experts 8 --expert-tensor-parallel-size 2 --expert-tensor-parallel-num-weight-shards 3",
         "--expert-tensor-parallel-num-weight-shards 3 is not a multiple of --expert-tensor-parallel-size 2; "
         "try 2 or 4"),
        ("--num-experts 8 --tensor-model-parallel-size 2",
         "--num-experts 8 with --tensor-model-parallel-size 2 needs --sequence-parallel: Megatron-LM does "
         "not train experts with tensor parallelism without it"),
    ],
)  # fmt: skip
def test_what_megatron_itself_would_stop_at(arguments: str, message: str) -> None:
    errors = [f.message for f in line(arguments).findings if f.severity == "error"]
    assert errors == [message]


def test_experts_take_the_tensor_parallel_size_by_default() -> None:
    job = line(
        "--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --sequence-parallel"
    )
    assert [f.message for f in job.findings if f.severity == "error"] == [
        "world size 8 is not a multiple of 16 = --expert-tensor-parallel-size 2 x "
        "--expert-model-parallel-size 8 x --pipeline-model-parallel-size 1; try a world size of 16"
    ]


def test_no_experts_no_word_about_them() -> None:
    job = line("--expert-tensor-parallel-num-weight-shards 1 --expert-model-parallel-size 1")
    assert not [f for f in job.findings if f.topic == "experts"]


def test_settings_that_change_what_is_shown() -> None:
    fsdp = line("--use-megatron-fsdp")
    assert [f.message for f in fsdp.findings if f.severity == "warning"] == [
        "--use-megatron-fsdp cuts the weights over the data-parallel ranks as well; the weight shards and "
        "bytes shown are those without it"
    ]
    order = line("--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2")
    assert [f.message for f in order.findings if f.severity == "warning"] == [
        "--use-tp-pp-dp-mapping numbers the 2 pipeline stages before the data-parallel ranks; the ranks "
        "shown are numbered with the pipeline last, which is the same only if the data-parallel size is 1"
    ]
    assert not [f for f in line("--use-tp-pp-dp-mapping").findings if f.severity == "warning"]


LLAMA = (
    "--num-layers 2 --hidden-size 128 --num-attention-heads 8 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --position-embedding-type rope --vocab-size 1000 "
)


def test_models_that_are_known() -> None:
    llama = line(LLAMA).model or {}
    assert (llama["model_type"], llama["vocab_size"], llama["intermediate_size"]) == ("llama", 1024, 320)
    assert llama["num_key_value_heads"] == 8
    assert llama["tie_word_embeddings"] is True
    qwen2 = line(f"{LLAMA} --add-qkv-bias --tensor-model-parallel-size 4").model or {}
    assert (qwen2["model_type"], qwen2["vocab_size"]) == ("qwen2", 1024)
    qwen3 = line(f"{LLAMA} --qk-layernorm --kv-channels 32 --padded-vocab-size 1008").model or {}
    assert (qwen3["model_type"], qwen3["head_dim"], qwen3["vocab_size"]) == ("qwen3", 32, 1008)


@pytest.mark.parametrize(
    ("removed", "added", "why"),
    [
        ("--swiglu", "", "--swiglu is not given"),
        ("--normalization RMSNorm", "", "--normalization is LayerNorm, not RMSNorm"),
        ("--disable-bias-linear", "", "--disable-bias-linear is not given"),
        ("--position-embedding-type rope", "", "--position-embedding-type is learned_absolute, not rope"),
        ("--vocab-size 1000", "", "the size of the vocabulary is the tokenizer's; --vocab-size is not given"),
        ("--num-layers 2", "", "--num-layers is not given"),
        ("", "--multi-latent-attention", "--multi-latent-attention is given"),
        ("", "--num-experts 8", "experts are not modelled"),
        ("", "--rotary-percent 0.5", "--rotary-percent is not 1.0"),
    ],
)
def test_models_that_are_not(removed: str, added: str, why: str) -> None:
    job = line(f"{LLAMA.replace(removed, '') if removed else LLAMA} {added}")
    assert job.model is None
    notes = [f.message for f in job.findings if f.topic == "model" and f.severity == "note"]
    assert notes == [f"bytes are not computed from the arguments: {why}; --model gives the model"]


@pytest.mark.parametrize(
    ("added", "extra"),  # parameters of a layer beside those of Llama
    [("", 0), ("--add-qkv-bias", 3 * 128), ("--qk-layernorm", 2 * 16)],
)
def test_models_have_the_parameters_of_the_job(added: str, extra: int) -> None:
    """Counted by hand: hidden 128, 8 heads of 16, 320 wide, vocabulary 1,024, two layers, tied."""
    config = line(f"{LLAMA} {added}").model
    assert config is not None
    refuse_unknown_fields(config)
    spec = ModelSpec.from_config(config)
    layer = 4 * 128 * 128 + 3 * 128 * 320 + 2 * 128 + extra
    assert sum(p.num_elements for p in spec.parameters) == 1024 * 128 + 2 * layer + 128


@pytest.mark.parametrize(
    "flags",
    [
        "--decoder-first-pipeline-num-layers 3",
        "--num-layers-per-virtual-pipeline-stage 1",
        "--account-for-embedding-in-pipeline-split",
        "--pipeline-model-parallel-layout 'Et*3|t*5L'",
    ],
)
def test_stages_that_are_no_equal_stretches_have_no_bytes(flags: str) -> None:
    job = (
        "torchrun --nproc-per-node 4 p.py --pipeline-model-parallel-size 2 --num-layers 8 --hidden-size 64 "
        "--num-attention-heads 4 --ffn-hidden-size 128 --swiglu --normalization RMSNorm "
        "--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights "
        "--tokenizer-type NullTokenizer --vocab-size 127 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --global-batch-size 4 --bf16"
    )
    equal = look_at(examine_foreign(read_foreign("megatron", job)))
    assert equal.job is not None
    assert equal.job.records
    unequal = look_at(examine_foreign(read_foreign("megatron", f"{job} {flags}")))
    assert unequal.job is not None
    assert unequal.job.plan is None
    assert (
        "parameters and bytes: the pipeline stages are no equal stretches of layers" in unequal.not_looked_at
    )
