"""Sources that hold no job of the program they are said to be of."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rankloom.config.foreign import read_foreign
from rankloom.errors import UserError

OURS = "parallel: {tensor_model_parallel_size: 2}\ntrain: {global_batch_size: 8}\ncluster: {world_size: 8}\n"
NEMO = "policy: {megatron_cfg: {enabled: true}}\ncluster: {gpus_per_node: 8, num_nodes: 1}\n"


def refusal(program: str, source: str) -> str:
    with pytest.raises(UserError) as caught:
        read_foreign(program, source)
    return str(caught.value)


def test_an_unknown_program() -> None:
    assert refusal("deepspeed", "x") == (
        "--from deepspeed: the programs that can be read are megatron and nemo-rl"
    )


def test_missing_files(tmp_path: Path) -> None:
    assert refusal("megatron", "no/such.sh") == (
        "no/such.sh does not exist; --from megatron takes a launch script, a file of arguments, or the shell "
        "line itself in quotes"
    )
    assert refusal("nemo-rl", "no/such.yaml") == (
        "no/such.yaml does not exist; --from nemo-rl takes the YAML file of a job"
    )
    assert refusal("megatron", str(tmp_path)) == f"{tmp_path} is a folder; name the file in it"
    assert refusal("nemo-rl", "uv run train.py") == (
        "no --config was found in 'uv run train.py'; name the YAML file of the NeMo-RL job"
    )


@pytest.mark.parametrize(
    ("program", "name", "text", "message"),
    [
        ("megatron", "a.sh", "echo hello\nls -l\n",
         "no Megatron-LM argument was found in {path}; is it a launch script of Megatron-LM, a file of its "
         "arguments, or a shell line with them?"),
        ("megatron", "a.sh", "TP=2 bash examples/train.sh\n",
         "no Megatron-LM argument was found in {path}; it starts examples/train.sh: is it the one to read?"),
        ("megatron", "a.yaml", "x: 1\n",
         "no Megatron-LM argument was found in {path}; is it a YAML file of Megatron-LM arguments?"),
        ("megatron", "a.yaml", "- 1\n", "{path} holds no YAML mapping of Megatron-LM arguments"),
        ("megatron", "a.yaml", NEMO, "{path} is a config of NeMo-RL; use --from nemo-rl"),
        ("megatron", "a", NEMO, "{path} is a config of NeMo-RL; use --from nemo-rl"),
        ("megatron", "a.yaml", OURS, "{path} is a config of rankloom; leave out --from"),
        ("nemo-rl", "a.yaml", OURS, "{path} is a config of rankloom; leave out --from"),
        ("nemo-rl", "a.yaml", "x: 1\n",
         "no NeMo-RL setting was found in {path}; is it a config of NeMo-RL, with a policy section?"),
        ("nemo-rl", "a.yaml", "[1]\n", "{path} holds no YAML mapping of settings"),
        ("nemo-rl", "a.sh", "torchrun pretrain_gpt.py --tensor-model-parallel-size 2\n",
         "{path} looks like arguments of Megatron-LM; use --from megatron"),
        ("nemo-rl", "a.yaml", "tensor_model_parallel_size: 2\n",
         "{path} looks like arguments of Megatron-LM; use --from megatron"),
        ("nemo-rl", "a.yaml", "policy: {a: [}\n", "{path}:1: did not find expected node content"),
    ],
)  # fmt: skip
def test_files_of_something_else(tmp_path: Path, program: str, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    expected = message.format(path=path)
    if "expected node" in expected:  # PyYAML's own words
        assert refusal(program, str(path)).startswith(f"{path}:1: ")
    else:
        assert refusal(program, str(path)) == expected


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("torchrun --nproc-per-node 2 pretrain_gpt.py --bf16"))
    job = read_foreign("megatron", "-")
    assert (job.origin, job.mapping["cluster"]["world_size"]) == ("standard input", 2)
    monkeypatch.setattr("sys.stdin", io.StringIO(NEMO))
    job = read_foreign("nemo-rl", "-")
    assert (job.origin, job.mapping["cluster"]["world_size"]) == ("standard input", 8)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert refusal("nemo-rl", "-") == "standard input holds no YAML mapping of settings"
