"""What a config is refused for, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankloom.config import refuse_for_training, resolve
from rankloom.errors import UserError

Mappings = dict[str, dict[str, Any]]
Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": {"learning_rte": 5e-5}},
            "train.learning_rte is not a setting; did you mean learning_rate, which is optimizer.lr here? "
            "(train section of run.yaml)",
        ),
        (
            {"train": {"learning_rate": 5e-5}},
            "train.learning_rate is not a setting; here it is optimizer.lr (train section of run.yaml)",
        ),
        (
            {"train": {"max_step": 5}},
            "train.max_step is not a setting; did you mean train.max_steps? (train section of run.yaml)",
        ),
        (
            {"optimizer": {"max_steps": 5}},
            "optimizer.max_steps is not a setting; max_steps belongs in the train section: train.max_steps "
            "(optimizer section of run.yaml)",
        ),
        (
            {"model": {"seed": 5}},
            "model.seed is not a setting; seed belongs in the data or train section: data.seed or train.seed "
            "(model section of run.yaml)",
        ),
        ({"lr": 1}, "lr is not a setting; lr belongs in the optimizer section: optimizer.lr (run.yaml)"),
        ({"optimiser": {"lr": 1}}, "optimiser is not a section; did you mean optimizer? (run.yaml)"),
        (
            {"train.max_steps": 1},
            "train.max_steps cannot stand at the top level; write train: {max_steps: ...} (run.yaml)",
        ),
        (
            {"model": {"hidden_size": 8}},
            "model.hidden_size is not a setting; here it is model.config.hidden_size "
            "(model section of run.yaml)",
        ),
        (
            {"cluster": {"nodes": 2}},
            "cluster.nodes is not a setting; cluster.world_size is the number of ranks on all machines, "
            "which torchrun starts (cluster section of run.yaml)",
        ),
        (
            {"data": {"seq_len": 8}},
            "data.seq_len is not a setting; here it is data.max_seq_length (data section of run.yaml)",
        ),
        (
            {"train": {"gradient_accumulation_steps": 2}},
            "train.gradient_accumulation_steps is not a setting; it follows from train.global_batch_size, "
            "train.micro_batch_size and the lanes of the layout (train section of run.yaml)",
        ),
        (
            {"parallel": {"expert_model_parallel_size": 2}},
            "parallel.expert_model_parallel_size is not a setting; expert parallelism is not supported "
            "(parallel section of run.yaml)",
        ),
        (
            {"comm": {"xyzzy": 1}},
            "comm.xyzzy is not a setting; settings of comm: timeout_s (comm section of run.yaml)",
        ),
        ({"data": 5}, "data is a section of settings, not a value: 5 (data section of run.yaml)"),
    ],
)
def test_keys_that_are_not_settings(refusal: Refusal, changes: Mappings, message: str) -> None:
    assert refusal(changes) == message


def test_a_key_below_a_setting(refusal: Refusal) -> None:
    message = refusal({}, cli={"train.max_steps.x": 1})
    assert message.startswith(
        "train.max_steps.x is not a setting; train.max_steps is one, with nothing below it"
    )


@pytest.mark.parametrize("layer", ["cli", "defaults"])
def test_unknown_keys_of_other_layers(refusal: Refusal, layer: str) -> None:
    message = refusal({}, **{layer: {"train.max_step": 5}})
    source = "--train.max_step" if layer == "cli" else "default of train.max_step given in code"
    assert message == f"train.max_step is not a setting; did you mean train.max_steps? ({source})"


SOURCES = "a path, or a list of paths and {path, weight} with a weight greater than 0"


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("train.global_batch_size", "eight", "an integer from 1 to 2147483647"),
        ("train.global_batch_size", 0, "an integer from 1 to 2147483647"),
        ("train.global_batch_size", 2.5, "an integer from 1 to 2147483647"),
        ("train.max_steps", True, "an integer of at least 1, or null"),
        ("train.eval_every", -1, "an integer of at least 0"),
        ("optimizer.lr", -0.1, "a number of at least 0"),
        ("optimizer.lr", float("nan"), "a number of at least 0"),
        ("optimizer.eps", 0, "a number greater than 0"),
        ("optimizer.betas", [0.9, 1.0], "a list of 2, each entry a number of at least 0 and less than 1"),
        ("optimizer.no_decay", "*.bias", "a list, each entry a text that is not empty"),
        ("data.packing", "perhaps", "true or false or one of first_fit_decreasing, greedy, none"),
        ("data.train", True, f"{SOURCES}, or null"),
        ("data.train", "", f"{SOURCES}, or null"),
        ("data.train", [], f"{SOURCES}, or null"),
        ("data.validation", [{"path": "a.jsonl", "weight": 0}], f"{SOURCES}, or null"),
        ("data.train", [{"pth": "a.jsonl"}], f"{SOURCES}, or null"),
        ("data.validation_split", 1, "a number of at least 0 and less than 1"),
        ("data.train_on", "turns", "one of all_turns, last_turn, all"),
        ("data.cache_dir", " ", "a text that is not empty, or null"),
        ("model.path", "", "a text that is not empty, or null"),
        ("logging.metrics", "", "a text that is not empty, or null"),
        ("checkpoint.dir", "", "a text that is not empty"),
        ("train.max_steps", "", "an integer of at least 1, or null"),
        ("comm.timeout_s", 1e30, "a number greater than 0 and at most 31536000 (a year)"),
        ("schedule.decay", "cos", "one of constant, linear, cosine, wsd"),
        ("model.dtype", "fp8", "float32 or bfloat16"),
        ("model.config", [1], "a mapping, or null"),
        ("cluster.engine", 3, "one of local, torchrun, ray"),
    ],
)
def test_values_that_are_not_allowed(refusal: Refusal, key: str, value: object, allowed: str) -> None:
    section, name = key.split(".")
    shown = "true" if value is True else repr(value)
    assert f"{key} must be {allowed}, not {shown} ({section} section of run.yaml)" == refusal(
        {section: {name: value}}
    )
    assert refusal({}, cli={key: value}).endswith(f"not {shown} (--{key})")


def test_everything_wrong_is_reported_at_once_one_problem_a_line(refusal: Refusal) -> None:
    message = refusal(
        {
            "train": {"micro_batch_size": "two", "max_step": 1},
            "parallel": {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 10},
            "schedule": {"min_lr": 1.0},
        },
        cli={"data.seed": -1},
    )
    lines = message.splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "train.max_step",
        "data.seed",
        "train.micro_batch_size",
        "tensor_parallel_num_weight_shards",
        "schedule.min_lr",
    ]


def test_what_is_required(base: Mappings, refusal: Refusal) -> None:
    del base["train"]["global_batch_size"]
    required = (
        "train.global_batch_size is required: an integer from 1 to 2147483647 (train section of run.yaml)"
    )
    assert refusal({}) == required
    assert refusal({"train": {"global_batch_size": None}}) == required
    base["train"]["global_batch_size"] = 4
    del base["cluster"]
    assert refusal({}).startswith("cluster.world_size is not set")


@pytest.mark.parametrize(
    ("changes", "layers", "message"),
    [
        (
            {"train": {"epochs": 2}},
            {},
            "train.max_steps and train.epochs are both set; keep one and set the other null "
            "(train section of run.yaml)",
        ),
        (
            {},
            {"cli": {"train.epochs": 2}},
            "train.max_steps and train.epochs are both set; keep one and set the other null "
            "(train section of run.yaml; --train.epochs)",
        ),
        (
            {"model": {"path": "x"}},
            {"cli": {"model.config.hidden_size": 8}},
            "model.path and model.config are both set; keep one and set the other null "
            "(model section of run.yaml; --model.config.hidden_size)",
        ),
    ],
)
def test_alternatives(refusal: Refusal, changes: Mappings, layers: Any, message: str) -> None:
    assert refusal(changes, **layers) == message


def test_layout_errors_say_where_their_numbers_came_from(refusal: Refusal) -> None:
    message = refusal(
        {"parallel": {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 10}}
    )
    assert message.startswith("tensor_parallel_num_weight_shards 10 is not a multiple of")
    assert message.endswith(" (parallel section of run.yaml)")

    message = refusal({"cluster": {"world_size": 8}}, cli={"parallel.context_parallel_size": 3})
    assert message.endswith("(cluster section of run.yaml; --parallel.context_parallel_size)")

    message = refusal({}, cli={"parallel.tensor_model_parallel_size": 4})
    assert message.startswith("world_size 1 is not a multiple of 4 = tensor_model_parallel_size 4 x")
    assert message.endswith("(cluster section of run.yaml; --parallel.tensor_model_parallel_size)")


def test_batch_errors_speak_in_config_keys(refusal: Refusal) -> None:
    message = refusal(
        {
            "cluster": {"world_size": 16},
            "parallel": {"tensor_model_parallel_size": 8},
            "train": {"global_batch_size": 3},
        }
    )
    for part in (
        "train.global_batch_size 3",
        "2 lanes = 16 / (1 x 1 x 8)",
        "try 2 or 4",
        "(train section of",
    ):
        assert part in message


def test_a_row_length_the_layout_cannot_cut(refusal: Refusal) -> None:
    message = refusal(
        {
            "cluster": {"world_size": 8},
            "parallel": {"tensor_model_parallel_size": 4, "context_parallel_size": 2},
            "data": {"max_seq_length": 4},
        }
    )
    assert "data.max_seq_length 4 is not a multiple of 8 =" in message
    assert message.endswith("try 8 (data section of run.yaml)")


def test_schedules_that_cannot_be_meant(refusal: Refusal) -> None:
    assert refusal({"schedule": {"min_lr": 0.5}}).startswith(
        "schedule.min_lr 0.5 is larger than optimizer.lr 0.0003; try 0.0003 or less (schedule section"
    )
    message = refusal({"schedule": {"warmup_samples": 9, "decay_samples": 8}})
    assert "schedule.warmup_samples 9 is larger than schedule.decay_samples 8" in message


def test_what_training_cannot_do_is_refused_all_at_once(base: Mappings) -> None:
    base["cluster"] = {"world_size": 2}
    base["parallel"] = {"pipeline_model_parallel_size": 2}
    base["train"] |= {"eval_every": 5}
    del base["train"]["max_steps"]
    resolved = resolve(base)
    with pytest.raises(UserError) as refused:
        refuse_for_training(resolved)
    lines = str(refused.value).splitlines()
    assert [next(w for w in line.split() if "." in w) for line in lines] == [
        "model.path",
        "data.train",
        "train.max_steps",
        "train.eval_every",
        "parallel.pipeline_model_parallel_size",
    ]
    assert lines[4].startswith(
        "parallel.pipeline_model_parallel_size 2: training with pipeline stages is not available yet; set it "
        "to 1 ("
    )


def test_more_ranks_than_there_are_cannot_be_left(base: Mappings) -> None:
    base["cluster"] = {"world_size": 2, "engine": "ray", "min_world_size": 4}
    with pytest.raises(UserError) as refused:
        refuse_for_training(resolve(base))
    message = "cluster.min_world_size 4 is more than cluster.world_size 2; try 2 or less (cluster section"
    assert any(line.startswith(message) for line in str(refused.value).splitlines())


def test_what_training_can_do_is_not_refused(base: Mappings) -> None:
    base |= {
        "model": {"config": {"model_type": "llama"}},
        "data": {"train": "python-docs", "overlong": "truncate"},
    }
    refuse_for_training(resolve(base))
