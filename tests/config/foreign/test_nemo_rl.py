"""NeMo-RL jobs in our keys: inheritance, interpolation, generation nodes and what NeMo-RL would stop at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankloom.config.foreign import ForeignJob, read_foreign
from rankloom.errors import UserError

FILES = Path(__file__).parent / "files"


def values(job: ForeignJob) -> dict[str, object]:
    return {f"{section}.{key}": v for section, body in job.mapping.items() for key, v in body.items()}


def messages(job: ForeignJob, severity: str) -> list[str]:
    return [f.message for f in job.findings if f.severity == severity]


def config(**changes: Any) -> dict[str, Any]:
    """One node of 8 GPUs, Megatron with TP 2; changes are dotted paths with __ for a dot."""
    settings: dict[str, Any] = {
        "policy": {
            "train_global_batch_size": 64,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": 1024,
            "megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 2},
            "dtensor_cfg": {"enabled": False},
        },
        "cluster": {"gpus_per_node": 8, "num_nodes": 1},
    }
    for path, value in changes.items():
        *sections, name = path.split("__")
        body = settings
        for section in sections:
            body = body.setdefault(section, {})
        body[name] = value
    return settings


def read(tmp_path: Path, settings: dict[str, Any], **options: Any) -> ForeignJob:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return read_foreign("nemo-rl", str(path), **options)


def test_24_ranks_with_weights_in_12_parts() -> None:
    job = read_foreign("nemo-rl", str(FILES / "sft_megatron.yaml"))
    assert values(job) == {
        "parallel.tensor_model_parallel_size": 4,
        "parallel.pipeline_model_parallel_size": 1,
        "parallel.context_parallel_size": 1,
        "parallel.sequence_parallel": True,
        "parallel.tensor_parallel_num_weight_shards": 12,
        "parallel.rank_order": "tp-cp-gtp-dp-pp",
        "train.micro_batch_size": 1,
        "train.global_batch_size": 96,
        "data.max_seq_length": 8192,
        "cluster.gpus_per_node": 8,
        "cluster.world_size": 24,
    }
    assert job.sequence_multiple == 4
    assert job.spelled["data.sequence_multiple"] == "policy.make_sequence_length_divisible_by"
    assert job.element_size == 2
    assert (job.eval_batch_size, job.eval_micro_batch_size) == (32, 1)
    assert job.spelled["train.eval_batch_size"] == "sft.val_global_batch_size"
    assert job.spelled["parallel.context_parallel_size"] == "policy.megatron_cfg.context_parallel_size"
    assert job.spelled["cluster.world_size"] == "cluster.num_nodes x cluster.gpus_per_node"
    assert f"defaults: {FILES / 'sft_base.yaml'}" in job.read
    assert "policy.train_global_batch_size: 96" in job.read
    assert job.ignored == (
        "sft (5 other keys)",
        "policy.tokenizer",
        "policy.dtensor_cfg (5 other keys)",
        "policy.megatron_cfg (2 other keys)",
        "policy.sequence_packing (2 other keys)",
        "policy.max_grad_norm",
        "data (2 keys)",
        "logger (2 keys)",
    )
    assert not messages(job, "error")
    assert not messages(job, "warning")


def test_grpo_with_nodes_that_only_generate() -> None:
    job = read_foreign("nemo-rl", str(FILES / "grpo.yaml"))
    found = values(job)
    assert found["cluster.world_size"] == 32
    assert found["parallel.context_parallel_size"] == 2  # ${div:${cluster.gpus_per_node}, 4}
    assert job.sequence_multiple == 8  # 2 x 2 x 2
    assert (job.eval_batch_size, job.eval_micro_batch_size) == (None, None)
    assert messages(job, "note") == [
        "32 GPUs train = 4 nodes x 8; 2 of the 6 nodes only generate "
        "(policy.generation.colocated.resources.num_nodes)",
        "rank order tp-cp-gtp-dp-pp is assumed, because no sequence shards are given; --rank-order says "
        "another one",
        "policy.model_name Qwen/Qwen2.5-7B is no folder with a config.json here: --model gives the model",
        "64 x 16 = 1024 rows are generated a step and trained on in 2 global batches of 512",
        "policy.sequence_packing fills microbatches up to 8192 tokens, so their number follows the data and "
        "not policy.train_micro_batch_size",
    ]
    assert not messages(job, "error")


def test_dtensor_is_mapped_and_said_to_be_cut_otherwise() -> None:
    job = read_foreign("nemo-rl", str(FILES / "sft_base.yaml"))
    assert job.spelled["parallel.tensor_model_parallel_size"] == "policy.dtensor_cfg.tensor_parallel_size"
    assert "parallel.tensor_parallel_num_weight_shards" not in values(job)
    assert values(job)["parallel.pipeline_model_parallel_size"] == 1
    assert messages(job, "warning") == [
        "policy.dtensor_cfg is enabled and policy.megatron_cfg is not: weights are cut over the data- and "
        "context-parallel ranks as well (FSDP); the weight shards and bytes shown are those without"
    ]


def test_a_command_line_with_overrides() -> None:
    job = read_foreign(
        "nemo-rl",
        f"uv run examples/run_grpo.py --config {FILES / 'grpo.yaml'} "
        "policy.megatron_cfg.tensor_model_parallel_size=4 ++cluster.num_nodes=4",
    )
    assert values(job)["parallel.tensor_model_parallel_size"] == 4
    assert values(job)["cluster.world_size"] == 16
    assert job.sources["parallel.tensor_model_parallel_size"] == "cli"
    assert job.sources["parallel.context_parallel_size"] == "file"


def test_weight_and_sequence_shards(tmp_path: Path) -> None:
    where = "policy__megatron_cfg__tensor_parallel_num"
    job = read(tmp_path, config(**{f"{where}_weight_shards": 4, f"{where}_sequence_shards": 2}))
    assert values(job)["parallel.tensor_parallel_num_weight_shards"] == 4
    assert values(job)["parallel.rank_order"] == "tp-gtp-cp-dp-pp"
    assert values(job)["parallel.sequence_parallel"] is False
    assert job.sources["parallel.sequence_parallel"] == "default"
    given = read(tmp_path, config(), rank_order="tp-gtp-cp-dp-pp")
    assert values(given)["parallel.rank_order"] == "tp-gtp-cp-dp-pp"
    assert given.sources["parallel.rank_order"] == "cli"


def test_the_model_is_read_where_it_is_a_folder(tmp_path: Path) -> None:
    model = {"model_type": "llama", "num_hidden_layers": 30}
    (tmp_path / "config.json").write_text(json.dumps(model))
    job = read(
        tmp_path,
        config(policy__model_name=str(tmp_path), policy__megatron_cfg__pipeline_model_parallel_size=4),
    )
    assert job.model == model
    assert messages(job, "error") == [
        "num_hidden_layers 30 of the model is not a multiple of "
        "policy.megatron_cfg.pipeline_model_parallel_size 4; try 3 or 5, or "
        "policy.megatron_cfg.num_layers_in_first_pipeline_stage"
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": {"num_prompts_per_step": 10, "num_generations_per_prompt": 10}},
         "grpo.num_prompts_per_step 10 x grpo.num_generations_per_prompt 10 = 100 is not a multiple of "
         "policy.train_global_batch_size 64; try policy.train_global_batch_size 50 or 100"),
        ({"policy__train_global_batch_size": "???"},
         "policy.train_global_batch_size is not known: policy.train_global_batch_size is ???, a value that "
         "has to be filled in"),
        ({"policy__train_micro_batch_size": "${policy.nowhere}"},
         "policy.train_micro_batch_size is not known: there is no policy.nowhere"),
        ({"policy__train_micro_batch_size": "${policy.train_micro_batch_size}"},
         "policy.train_micro_batch_size is not known: policy.train_micro_batch_size refers to itself, "
         "or is nested too deeply"),
        ({"cluster__num_nodes": "${oc.env:NODES}"},
         "cluster.num_nodes is not known: the environment variable NODES is not known here"),
        ({"policy__train_micro_batch_size": "many"},
         "policy.train_micro_batch_size must be a whole number, not 'many'"),
        ({"policy__megatron_cfg__enabled": False},
         "neither policy.megatron_cfg.enabled nor policy.dtensor_cfg.enabled is true: NeMo-RL has nothing to "
         "train with; set one of them"),
        ({"policy__dtensor_cfg__enabled": True},
         "policy.megatron_cfg.enabled and policy.dtensor_cfg.enabled are both true, and NeMo-RL takes one of "
         "them; megatron_cfg is read here"),
        ({"policy__megatron_cfg__context_parallel_size": 2},
         "policy.megatron_cfg.context_parallel_size 2 needs policy.sequence_packing.enabled true, and it is "
         "false"),
        ({"policy__sequence_packing__enabled": True, "policy__dynamic_batching__enabled": True},
         "policy.sequence_packing and policy.dynamic_batching exclude each other; set one enabled false"),
        ({"policy__dynamic_batching__enabled": True, "policy__megatron_cfg__pipeline_model_parallel_size": 2},
         "policy.dynamic_batching does not work with policy.megatron_cfg.pipeline_model_parallel_size 2; set "
         "policy.dynamic_batching.enabled false and policy.sequence_packing.enabled true"),
        ({"policy__generation__colocated": {"enabled": False, "resources": {"gpus_per_node": None}}},
         "policy.generation.colocated.resources.gpus_per_node must be 1 to 7 of cluster.gpus_per_node 8 when "
         "generation has GPUs of its own on one node, not null"),
        ({"cluster__num_nodes": 2,
          "policy__generation__colocated": {"enabled": False, "resources": {"num_nodes": 2}}},
         "policy.generation.colocated.resources.num_nodes must be 1 to 1 of cluster.num_nodes 2 when "
         "generation has nodes of its own, not 2"),
        ({"policy__megatron_cfg__expert_model_parallel_size": 3,
          "policy__megatron_cfg__expert_tensor_parallel_size": 1},
         "world size 8 is not a multiple of 3 = policy.megatron_cfg.expert_tensor_parallel_size 1 x "
         "policy.megatron_cfg.expert_model_parallel_size 3 x "
         "policy.megatron_cfg.pipeline_model_parallel_size 1; try a world size of 6 or 9"),
    ],
)  # fmt: skip
def test_what_nemo_rl_itself_would_stop_at(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert messages(read(tmp_path, config(**changes)), "error") == [message]


def test_gpus_of_one_node_that_only_generate(tmp_path: Path) -> None:
    colocated = {"enabled": False, "resources": {"gpus_per_node": 2, "num_nodes": None}}
    job = read(tmp_path, config(policy__generation__colocated=colocated))
    assert (values(job)["cluster.world_size"], values(job)["cluster.gpus_per_node"]) == (6, 6)
    assert (
        "6 GPUs train = 8 - 2 that only generate (policy.generation.colocated.resources.gpus_per_node)"
    ) in messages(job, "note")


def test_pairs_of_answers_are_rows(tmp_path: Path) -> None:
    job = read(tmp_path, config(dpo={"val_global_batch_size": 8, "val_micro_batch_size": 1}))
    assert (job.eval_batch_size, job.eval_micro_batch_size) == (8, 1)
    assert messages(job, "note")[-1] == (
        "dpo: a row of policy.train_global_batch_size and policy.train_micro_batch_size is a pair of a "
        "chosen and a rejected answer, so a rank holds twice as many sequences"
    )


def test_experts_and_teachers_are_not_modelled(tmp_path: Path) -> None:
    changes = {"policy__megatron_cfg__expert_model_parallel_size": 4, "teacher": {"model_name": "x"}}
    job = read(tmp_path, config(**changes))
    assert messages(job, "warning") == [
        "experts are not modelled: policy.megatron_cfg.expert_model_parallel_size 4; weights, bytes and "
        "groups of expert layers are not shown"
    ]
    assert "teacher is a second model with a layout of its own, which is not looked at" in messages(
        job, "note"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${policy.max_total_sequence_length}", 1024),
        ("${.max_total_sequence_length}", 1024),
        ("${..cluster.gpus_per_node}", 8),
        ("${mul:${cluster.gpus_per_node}, 2}", 16),
        ("${mul:${mul:${.megatron_cfg.tensor_model_parallel_size},3},2}", 12),
        ("${div:${cluster.gpus_per_node},2}", 4),
        ("${max:${cluster.gpus_per_node}, 12}", 12),
        ("${add:1, 2}", 3),
        ("${sub:5, 2}", 3),
        ("${oc.env:NO_SUCH_VARIABLE, 4}", 4),
    ],
)
def test_interpolation(tmp_path: Path, text: str, expected: int) -> None:
    job = read(tmp_path, config(policy__make_sequence_length_divisible_by=text))
    assert job.sequence_multiple == expected
    assert not messages(job, "error")


def test_inheritance_merges_in_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    first = config(policy__train_global_batch_size=1, sft={"val_global_batch_size": 3, "other": 1})
    (tmp_path / "deep" / "a.yaml").write_text(yaml.safe_dump(first))
    (tmp_path / "b.yaml").write_text(
        "defaults: deep/a.yaml\npolicy: {train_global_batch_size: 2, train_micro_batch_size: 2}\n"
    )
    (tmp_path / "c.yaml").write_text("sft: {_override_: true, val_micro_batch_size: 1}\n")
    (tmp_path / "d.yaml").write_text("defaults: [b.yaml, c.yaml]\npolicy: {train_global_batch_size: 4}\n")
    job = read_foreign("nemo-rl", str(tmp_path / "d.yaml"))
    assert values(job)["train.global_batch_size"] == 4
    assert values(job)["train.micro_batch_size"] == 2
    assert values(job)["data.max_seq_length"] == 1024
    assert (job.eval_batch_size, job.eval_micro_batch_size) == (None, 1)
    assert [text for text in job.read if text.startswith("defaults")] == [
        f"defaults: {tmp_path}/deep/a.yaml",
        f"defaults: {tmp_path}/b.yaml",
        f"defaults: {tmp_path}/c.yaml",
    ]


def test_inheritance_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\n")
    with pytest.raises(UserError, match=r"^defaults of .*/b\.yaml: a\.yaml inherits from itself$"):
        read_foreign("nemo-rl", str(tmp_path / "a.yaml"))
    (tmp_path / "c.yaml").write_text("defaults: nowhere.yaml\n")
    with pytest.raises(UserError, match=r"^defaults of .*/c\.yaml: .*/nowhere\.yaml does not exist$"):
        read_foreign("nemo-rl", str(tmp_path / "c.yaml"))


def test_what_was_not_looked_at_stays_short(tmp_path: Path) -> None:
    many = {f"k{i}": i for i in range(40)}
    job = read(tmp_path, config(grpo=many, policy__optimizer=many, env={"math": many}))
    assert job.ignored == ("policy.optimizer (40 keys)", "grpo (40 keys)", "env (40 keys)")
