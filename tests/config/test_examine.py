"""Settings that are examined, not resolved: nothing is raised, everything wrong is told at once."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.config.examine import Examined, Place, examine
from rankloom.config.schema import CheckpointSection, DataSection, TrainSection

Mappings = dict[str, Any]
GOOD: Mappings = {
    "cluster": {"world_size": 8},
    "train": {"global_batch_size": 8, "max_steps": 2},
}


def look(**changes: Any) -> Examined:
    mapping = {name: dict(body) for name, body in GOOD.items()}
    for name, body in changes.items():
        mapping[name] = {**mapping.get(name, {}), **body} if isinstance(body, dict) else body
    return examine(mapping, origin="run.yaml")


def texts(examined: Examined) -> list[str]:
    assert all(finding.severity == "error" for finding in examined.findings)
    return [finding.text for finding in examined.findings]


def test_a_good_config() -> None:
    examined = look()
    assert (examined.findings, examined.missing, examined.refused) == ((), (), frozenset())
    assert (examined.program, examined.origin) == ("rankloom", "run.yaml")
    assert examined.layout is not None
    assert examined.layout.batch_parallel_size == 8
    assert examined.batch is not None
    assert examined.batch.num_microbatches == 1


def test_places() -> None:
    examined = examine(
        GOOD,
        cli={"cluster.world_size": 4, "train.max_steps": 3},
        defaults={"optimizer.lr": 0.5},
        origin="run.yaml",
        flags=["cluster.world_size"],
    )
    key = "cluster.world_size"
    assert examined.place(key) == Place(key, key, 4, "cli", "given on the command line")
    assert examined.place("train.max_steps").where == "--train.max_steps"
    key = "train.global_batch_size"
    assert examined.place(key) == Place(key, key, 8, "file", "train section of run.yaml")
    key = "optimizer.lr"
    assert examined.place(key) == Place(key, key, 0.5, "default", "default of optimizer.lr given in code")
    key = "schedule.decay_samples"
    assert examined.place(key) == Place(key, key, 24, "derived", "")
    both = examined.where("train.max_steps", "train.global_batch_size", "schedule.min_lr")
    assert both == "--train.max_steps; train section of run.yaml"


def test_what_is_left_out_is_missing_and_nothing_is_wrong() -> None:
    examined = examine({})
    assert examined.findings == ()
    assert examined.missing == (
        "layout: the number of ranks is not said; give --world-size",
        "batch: there is no batch size (train.global_batch_size)",
    )
    assert (examined.layout, examined.batch) == (None, None)
    examined = examine({"cluster": {"world_size": 8}})
    assert examined.missing == ("batch: there is no batch size (train.global_batch_size)",)
    assert examine({"cluster": None, "model": None}).findings == ()


def test_a_refused_value_hides_nothing_else() -> None:
    examined = look(
        train={"global_batch_size": 12, "max_steps": "many"},
        checkpoint={"keep": 0, "dir": "runs/x"},
        data={"max_seq_length": 7, "seed": -1},
        parallel={"context_parallel_size": 2},
    )
    assert texts(examined) == [
        "data.seed must be an integer of at least 0, not -1 (data section of run.yaml)",
        "train.max_steps must be an integer of at least 1, or null, not 'many' (train section of run.yaml)",
        "checkpoint.keep must be an integer of at least 1, or null, not 0 (checkpoint section of run.yaml)",
        "data.max_seq_length 7 is not a multiple of 4 = 2 x runtime context parallel size 2; try 4 or 8 "
        "(data section of run.yaml)",
    ]
    assert examined.batch is not None
    assert examined.batch.num_microbatches == 3
    assert examined.refused == {"data.seed", "train.max_steps", "checkpoint.keep"}
    assert examined.value("checkpoint.keep") is None
    assert examined.value("checkpoint.dir") == "runs/x"
    assert examined.value("logging.metrics") == "runs/x/metrics.jsonl"
    assert examined.place("train.max_steps").value == "many"
    assert examined.place("train.max_steps").where == "train section of run.yaml"
    for kind in (TrainSection, CheckpointSection, DataSection):
        assert examined.get(kind) is not None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parallel": {"tensor_model_parallel_size": 2.5}}, 1),  # no layout with TP 1 instead
        ({"parallel": {"rank_order": "tp-dp"}}, 1),
        ({"cluster": {"world_size": "all"}}, 1),
        ({"cluster": [8]}, 1),
        ({"train": {"global_batch_size": 12, "micro_batch_size": 0}}, 1),  # no arithmetic with 1 instead
        ({"train": {"global_batch_size": "x", "eval_batch_size": 3}}, 1),
        ({"data": {"max_seq_length": 0}, "parallel": {"context_parallel_size": 8}}, 1),
        ({"schedule": {"min_lr": 1}, "optimizer": {"lr": -1}}, 1),
        ({"train": True}, 1),
    ],
)
def test_nothing_is_computed_from_a_refused_value(changes: Mappings, told: int) -> None:
    examined = look(**changes)
    assert len(texts(examined)) == told, texts(examined)


def test_sections_that_are_none() -> None:
    examined = examine({"train": [1, 2], "cluster": "eight", "parallel": None}, origin="run.yaml")
    assert texts(examined) == [
        "train is a section of settings, not a value: [1, 2] (train section of run.yaml)",
        "cluster is a section of settings, not a value: 'eight' (cluster section of run.yaml)",
    ]
    assert examined.missing == ()
    assert examined.layout is None


def test_unknown_keys_have_a_place() -> None:
    examined = examine(
        {"train": {"learning_rte": 5e-5}, "optimiser": {"lr": 1}, 7: 8, None: 1}, origin="run.yaml"
    )
    found = {finding.keys: finding.text for finding in examined.findings}
    assert found["train.learning_rte",] == (
        "train.learning_rte is not a setting; did you mean learning_rate, which is optimizer.lr here? "
        "(train section of run.yaml)"
    )
    assert found["optimiser",] == "optimiser is not a section; did you mean optimizer? (run.yaml)"
    assert found["7",].endswith("(run.yaml)")
    place = examined.place("train.learning_rte")
    assert (place.value, place.source, place.where) == (5e-5, "file", "train section of run.yaml")
    assert examined.place("optimiser").where == "run.yaml"


def test_worlds_that_are_too_large() -> None:
    examined = look(cluster={"world_size": 10**20})
    assert texts(examined) == [
        "cluster.world_size 100000000000000000000 is more than 1048576, the most there may be "
        "(cluster section of run.yaml)"
    ]
    listed = look(cluster={"nvlink_domains": "0-99999999999"})
    assert texts(listed)[0].startswith("cluster.nvlink_domains must be a list with the ranks of each domain")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        ([[0, 1], [[2]]], "[[0, 1], [[2]]]"),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, ...]"),
        ("x" * 500, "'xxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxxx'"),
    ],
)
def test_a_long_value_is_cut_short(value: object, shown: str) -> None:
    assert texts(look(train={"max_steps": value})) == [
        f"train.max_steps must be an integer of at least 1, or null, not {shown} (train section of run.yaml)"
    ]


def test_evaluation_has_no_layout_of_its_own() -> None:
    means = (
        "is not a setting; evaluation runs in the layout of training (parallel section); its own settings "
        "are train.eval_every, train.eval_batch_size and data.validation"
    )
    for key in ("train.eval_context_parallel_size", "parallel.eval_tensor_model_parallel_size"):
        examined = examine(GOOD, cli={key: 2})
        assert texts(examined) == [f"{key} {means} (--{key})"]
    assert texts(look(eval={"context_parallel_size": 2})) == [f"eval {means} (run.yaml)"]
    cli = examine(GOOD, cli={"evaluation.context_parallel_size": 2})
    assert texts(cli)[0].startswith(f"evaluation.context_parallel_size {means}")


def test_a_job_without_a_file_is_on_the_command_line() -> None:
    examined = examine({}, cli={"cluster.world_size": 8, "train.max_steps": 2}, origin="the command line")
    assert texts(examined) == [
        "train.global_batch_size is required: an integer from 1 to 2147483647 (the command line)"
    ]
