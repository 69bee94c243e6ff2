"""What another program's job says and nobody knows: no layout from a default, no errors after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.config.examine import Examined
from rankloom.config.examine_foreign import examine_foreign
from rankloom.config.foreign import read_foreign
from rankloom.errors import UserError

LAUNCH = "torchrun --nproc-per-node 8 pretrain_gpt.py"
TP = "--tensor-model-parallel-size"
BATCH = "--micro-batch-size 1 --global-batch-size 8"
POLICY = """policy:
  train_global_batch_size: {batch}
  train_micro_batch_size: 1
  megatron_cfg: {{enabled: true, tensor_model_parallel_size: {tp}, sequence_parallel: {sp}}}
cluster: {{gpus_per_node: {gpus}, num_nodes: {nodes}}}
{more}
"""


def look(source: str, program: str = "megatron", **cli: object) -> Examined:
    return examine_foreign(read_foreign(program, source), cli=cli)


def megatron(arguments: str, launch: str = LAUNCH, **cli: object) -> Examined:
    return look(f"{launch} {arguments}", **cli)


def nemo_rl(tmp_path: Path, **changes: object) -> Examined:
    values = {"batch": 8, "tp": 2, "sp": "true", "gpus": 8, "nodes": 1, "more": ""} | changes
    path = tmp_path / "job.yaml"
    path.write_text(POLICY.format(**values))
    return look(str(path), "nemo-rl")


def messages(examined: Examined, severity: str) -> list[str]:
    return [f.message for f in examined.findings if f.severity == severity]


@pytest.mark.parametrize("value", ["$TP", "2.5", "2\0", '"2 --bf16', "", "${M[tp]}", "$(nproc)", "$1"])
def test_no_layout_where_tp_is_not_known(value: str) -> None:
    examined = megatron(f"{BATCH} --tensor-parallel-num-weight-shards 6 {TP} {value}")
    assert (examined.layout, examined.batch) == (None, None)
    assert examined.missing == (f"layout: {TP} is not known",)
    assert len(messages(examined, "error") + messages(examined, "warning")) == 1


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("--context-parallel-size", "layout"),
        ("--pipeline-model-parallel-size", "layout"),
        ("--tensor-parallel-num-weight-shards", "layout"),
        ("--global-batch-size", "batch"),
        ("--micro-batch-size", "batch"),
        ("--seq-length", "sequence"),
    ],
)
def test_nothing_is_computed_from_what_is_not_known(name: str, topic: str) -> None:
    examined = megatron(f"{BATCH} {TP} 2 {name} $(nproc)")
    assert (examined.layout is None, examined.batch is None) == (topic == "layout", topic != "sequence")
    assert examined.missing == (f"{topic}: {name} is not known",)
    assert messages(examined, "error") == []
    assert f"{name} $(nproc): $(nproc) is only known when the script runs" in messages(examined, "warning")


def test_what_the_user_gives_is_known() -> None:
    examined = megatron(f"{BATCH} {TP} $TP", **{"parallel.tensor_model_parallel_size": 2})
    assert examined.layout is not None
    assert examined.layout.batch_parallel_size == 4
    assert (examined.missing, messages(examined, "error")) == ((), [])


@pytest.mark.parametrize("flag", ["--gtp-remat-fold-cp", "--fold-whole-cp"])
def test_older_spellings_of_what_is_not_known(flag: str) -> None:
    examined = megatron(f"{BATCH} {TP} $1 --tensor-parallel-num-weight-shards 6 {flag}")
    assert examined.layout is None
    assert f"layout: {TP} is not known" in examined.missing
    assert messages(examined, "error") == []


def test_experts_of_what_is_not_known() -> None:
    examined = megatron(f"{BATCH} {TP} $1 --sequence-parallel --num-experts 6 --expert-model-parallel-size 4")
    assert messages(examined, "error") == []


@pytest.mark.parametrize(
    ("launch", "severity", "message"),
    [
        ("torchrun --nproc-per-node 0 p.py", "error", "nproc-per-node must be at least 1, not 0"),
        ("torchrun --nproc-per-node -8 p.py", "error", "nproc-per-node must be at least 1, not -8"),
        ("torchrun --nproc-per-node 8 --nnodes 0 p.py", "error", "nnodes must be at least 1, not 0"),
        ("NP=$(nvidia-smi -L | wc -l)\ntorchrun --nproc-per-node $NP p.py", "warning",
         "how many ranks there are is not known: nproc-per-node is $(nvidia-smi -L | wc -l), and "
         "$(nvidia-smi -L | wc -l) is only known when the script runs; give --world-size"),
        ("torchrun --nproc-per-node $((9**9**9)) p.py", "warning",
         "how many ranks there are is not known: nproc-per-node is $((9**9**9)), and $((9**9**9)) is only "
         "known when the script runs; give --world-size"),
    ],
)  # fmt: skip
def test_numbers_of_ranks_that_are_none(launch: str, severity: str, message: str) -> None:
    examined = megatron(f"{TP} 2 --micro-batch-size 1", launch)
    assert examined.layout is None
    assert messages(examined, severity) == [message]
    assert examined.missing == (
        "batch: --global-batch-size is not known",
        "layout: the number of ranks is not said; give --world-size",
    )


def test_no_global_batch_and_a_layout_that_cannot_be_made() -> None:
    examined = megatron(f"{TP} 3 --micro-batch-size 1")
    [error] = messages(examined, "error")
    assert "required" not in error
    assert examined.missing == ("batch: --global-batch-size is not known",)


def test_arguments_alone_with_options_of_the_launcher() -> None:
    for source in (f"--nproc-per-node 8 {TP} 2 {BATCH}", f"{TP} 2 --nnodes=2 --nproc-per-node=4 {BATCH}"):
        job = read_foreign("megatron", source)
        assert job.mapping["cluster"]["world_size"] == 8
        assert job.ignored == ()


@pytest.mark.parametrize(
    ("changes", "topic", "message"),
    [
        ({"tp": "'${a}'", "more": "a: ${b}\nb: ${a}"}, "policy.megatron_cfg.tensor_model_parallel_size",
         "policy.megatron_cfg.tensor_model_parallel_size is not known: a refers to itself, or is nested too "
         "deeply"),
        ({"tp": "true"}, "policy.megatron_cfg.tensor_model_parallel_size",
         "policy.megatron_cfg.tensor_model_parallel_size must be a whole number, not True"),
        ({"tp": ".nan"}, "policy.megatron_cfg.tensor_model_parallel_size",
         "policy.megatron_cfg.tensor_model_parallel_size must be a whole number, not nan"),
        ({"sp": "perhaps"}, "policy.megatron_cfg.sequence_parallel",
         "policy.megatron_cfg.sequence_parallel must be true or false, not 'perhaps'"),
        ({"nodes": -1}, "cluster.num_nodes x cluster.gpus_per_node",
         "cluster.num_nodes must be at least 1, not -1"),
        ({"nodes": "'${'"}, "cluster.num_nodes x cluster.gpus_per_node",
         "cluster.num_nodes is not known: ${ has a ${ that is not closed"),
        ({"nodes": "'${div:4,0}'"}, "cluster.num_nodes x cluster.gpus_per_node",
         "cluster.num_nodes is not known: ${div:4,0} divides by 0"),
        ({"nodes": "'${mul:4,a}'"}, "cluster.num_nodes x cluster.gpus_per_node",
         "cluster.num_nodes is not known: ${mul:4,a} takes numbers, not 4, a"),
    ],
)  # fmt: skip
def test_nemo_rl_values_that_are_not_known(
    tmp_path: Path, changes: dict[str, object], topic: str, message: str
) -> None:
    examined = nemo_rl(tmp_path, **changes)
    assert examined.layout is None
    assert messages(examined, "error") == [message]
    assert f"layout: {topic} is not known" in examined.missing


def test_gpus_of_a_node_must_be_some(tmp_path: Path) -> None:
    examined = nemo_rl(tmp_path, gpus=0)
    assert examined.layout is None
    assert messages(examined, "error") == ["cluster.gpus_per_node must be at least 1, not 0"]


def test_references_that_double_end(tmp_path: Path) -> None:
    chain = "\n".join(f"a{i}: '${{a{i + 1}}}${{a{i + 1}}}'" for i in range(25))
    [error] = messages(nemo_rl(tmp_path, tp="'${a0}'", more=f"{chain}\na25: x"), "error")
    assert error == (
        "policy.megatron_cfg.tensor_model_parallel_size is not known: it refers to too many other values"
    )


@pytest.mark.parametrize("program", ["megatron", "nemo-rl"])
def test_files_that_would_take_forever_are_refused(tmp_path: Path, program: str) -> None:
    path = tmp_path / "job.yaml"

    def refusal(text: str) -> str:
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            read_foreign(program, str(path))
        return str(caught.value)

    assert refusal("x: " + "[" * 5000) == f"{path}: its lists and mappings are nested too deeply"
    assert refusal("a: &a [*a]\n") == f"{path}:1: an alias stands inside what it stands for"
    aliases = "".join(f"a{i + 1}: &a{i + 1} {{x: *a{i}, y: *a{i}}}\n" for i in range(15))
    assert refusal(f"a0: &a0 {{x: 1}}\n{aliases}") == f"{path} holds more than 20,000 settings"
    assert refusal("# x\n" * 300_000) == f"{path} has 1,200,000 bytes, and at most 1,000,000 are read"


def test_chains_of_inherited_files_end(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"c{i}.yaml").write_text(f"defaults: c{i + 1}.yaml\n")
    (tmp_path / "c60.yaml").write_text("policy: {train_global_batch_size: 8}\n")
    with pytest.raises(UserError, match="more than 40 files are inherited"):
        read_foreign("nemo-rl", str(tmp_path / "c0.yaml"))


@pytest.mark.parametrize("program", ["megatron", "nemo-rl"])
def test_an_empty_name(program: str) -> None:
    with pytest.raises(UserError) as caught:
        read_foreign(program, " ")
    assert str(caught.value) == f"--from {program}: the name of the job's file is empty"
