"""Divisions of the layout, batches, lengths of rows and what cannot be trained, each as one finding."""

from __future__ import annotations

import pytest

from rankloom.config.findings import Finding
from tests.check.jobs import look, told, trained, world

TP, W, Q = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
)
CP, PP = "context_parallel_size", "pipeline_model_parallel_size"
PARALLEL, CLUSTER, TRAIN = ("parallel section of run.yaml", "cluster section of run.yaml", "train section")


@pytest.mark.parametrize(
    ("size", "parallel", "message", "keys"),
    [
        (
            24,
            {TP: 4, W: 10},
            f"{W} 10 is not a multiple of {TP} 4; try 8 or 12",
            (f"parallel.{W}", f"parallel.{TP}"),
        ),
        (
            8,
            {TP: 3},  # nobody set W, so TP is what can be changed
            f"world_size 8 is not a multiple of 3 = {TP} 3 x {CP} 1 x {PP} 1; "
            f"try world_size 6 or 9, or {TP} 2 or 4",
            ("cluster.world_size", f"parallel.{TP}", f"parallel.{CP}", f"parallel.{PP}"),
        ),
        (
            8,
            {W: 3},
            f"world_size 8 is not a multiple of 3 = {W} 3 x {CP} 1 x {PP} 1; "
            f"try world_size 6 or 9, or {W} 2 or 4",
            ("cluster.world_size", f"parallel.{W}", f"parallel.{CP}", f"parallel.{PP}", f"parallel.{TP}"),
        ),
        (
            8,
            {TP: 2, "sequence_parallel": False, W: 4, Q: 2},
            f"{Q} 2 with {TP} 2 needs sequence_parallel true, and it is false; set sequence_parallel true "
            f"({Q} then counts the TP ranks too), or {Q} 1",
            (f"parallel.{Q}", f"parallel.{TP}", "parallel.sequence_parallel"),
        ),
    ],
)
def test_a_layout_that_cannot_be(
    size: int, parallel: dict[str, object], message: str, keys: tuple[str, ...]
) -> None:
    report = look(world(size, **parallel))
    (finding,) = report.findings
    assert (finding.severity, finding.topic, finding.message) == ("error", "layout", message)
    assert finding.keys == keys
    assert finding.where in (PARALLEL, f"{CLUSTER}; {PARALLEL}")
    assert report.job is None
    assert report.exit_code == 2
    assert "lanes, batch, placement: they need the layout, which is wrong above" in report.not_looked_at


def test_a_global_batch_that_does_not_divide() -> None:
    config = {**world(16, **{TP: 8}), "train": {"global_batch_size": 3, "max_steps": 1}}
    (finding,) = told(look(config), "batch")
    assert finding == Finding(
        "error",
        "batch",
        "train.global_batch_size 3 is not a multiple of 2 = train.micro_batch_size 1 x 2 lanes; try 2 or 4 "
        "(2 lanes = 16 / (1 x 1 x 8): cluster.world_size / (pipeline x runtime context x tensor parallel "
        "size))",
        ("train.global_batch_size", "train.micro_batch_size"),
        "train section of run.yaml",
    )


def test_an_evaluation_batch_that_does_not_divide() -> None:
    config = {**world(16, **{TP: 8}), "data": {"validation_split": 0.1}}
    config["train"] = {"global_batch_size": 4, "max_steps": 1, "eval_every": 1}
    (finding,) = told(look(config, cli={"train.eval_batch_size": 3}), severity="error")
    assert finding == Finding(
        "error",
        "batch",
        "train.eval_batch_size 3 is not a multiple of 2 = train.micro_batch_size 1 x 2 lanes; try 2 or 4 "
        "(2 lanes = 16 / (1 x 1 x 8): cluster.world_size / (pipeline x runtime context x tensor parallel "
        "size))",
        ("train.eval_batch_size", "train.micro_batch_size"),
        "--train.eval_batch_size",
    )
    (finding,) = told(look(config, cli={"train.eval_batch_size": -2}), severity="error")
    assert finding.message == "train.eval_batch_size must be an integer from 1 to 2147483647, or null, not -2"


def test_accumulation_counts_each_row_once() -> None:
    config = {**world(8, **{TP: 2, W: 8}), "train": {"global_batch_size": 8, "max_steps": 3}}
    batch = look(config).examined.batch
    assert batch is not None
    assert (batch.num_lanes, batch.num_microbatches, batch.rows_per_lane) == (4, 2, 2)
    for tp in (1, 2):  # the global batch is the user's number, whatever the layout
        batch = look({**config, "parallel": {TP: tp}}).examined.batch
        assert batch is not None
        assert batch.global_batch_size == 8


@pytest.mark.parametrize(
    ("size", "parallel", "length", "multiple", "tries"),
    [
        (8, {TP: 4, CP: 2}, 4, "8 = runtime context parallel size 2 x lcm(2, {tp} 4) with {sp} true", "8"),
        (6, {TP: 3, CP: 2}, 18, "12 = runtime context parallel size 2 x lcm(2, {tp} 3) with {sp} true",
         "12 or 24"),
        (4, {CP: 4}, 12, "8 = 2 x runtime context parallel size 4", "8 or 16"),
        (8, {TP: 2, CP: 2, "sequence_parallel": False}, 6, "4 = 2 x runtime context parallel size 2",
         "4 or 8"),
        (4, {TP: 4}, 6, "4 = {tp} 4 with {sp} true", "4 or 8"),
        (8, {W: 4, Q: 4, CP: 2}, 24, "16 = 2 x runtime context parallel size 8", "16 or 32"),
    ],
)  # fmt: skip
def test_lengths_that_cannot_be_cut(
    size: int, parallel: dict[str, object], length: int, multiple: str, tries: str
) -> None:
    config = {**world(size, **parallel), "data": {"max_seq_length": length}}
    (finding,) = told(look(config), "sequence")
    why = multiple.format(tp=TP, sp="sequence_parallel")
    assert finding == Finding(
        "error",
        "sequence",
        f"data.max_seq_length {length} is not a multiple of {why}; try {tries}",
        ("data.max_seq_length",),
        "data section of run.yaml",
    )
    needed = int(multiple.split()[0])
    assert told(look({**config, "data": {"max_seq_length": 3 * needed}}), "sequence") == []


def test_a_length_of_any_kind_where_nothing_cuts_it() -> None:
    for parallel in ({}, {TP: 4, "sequence_parallel": False}):
        assert told(look({**world(4, **parallel), "data": {"max_seq_length": 7}}), "sequence") == []


@pytest.mark.parametrize(
    ("key", "value", "what", "remedy"),
    [
        (f"parallel.{PP}", 2, "training with pipeline stages", "1"),
    ],
)
def test_what_cannot_be_trained_yet(key: str, value: object, what: str, remedy: str) -> None:
    report = look(trained(2), cli={key: value}, files=False)
    message = f"{key} {value}: {what} is not available yet; set it to {remedy}"
    assert told(report, severity="error") == [Finding("error", "training", message, (key,), f"--{key}")]
    assert report.job is not None  # describing it is possible


def test_a_run_without_an_end() -> None:
    report = look(trained(2, train={"max_steps": None}), files=False)
    assert told(report, severity="error") == [
        Finding(
            "error",
            "training",
            "there is no end to the run: set train.max_steps or train.epochs",
            ("train.max_steps",),
            "train section of run.yaml",
        )
    ]
    refused = look(trained(2, train={"max_steps": "soon"}), files=False)
    assert [finding.topic for finding in told(refused, severity="error")] == ["settings"]


def test_evaluation_without_data_to_evaluate() -> None:
    report = look(trained(2), cli={"train.eval_every": 5}, files=False)
    assert told(report, severity="error") == [
        Finding(
            "error",
            "training",
            "train.eval_every 5: there is no validation data: set data.validation, or "
            "data.validation_split to a share of data.train",
            ("train.eval_every",),
            "--train.eval_every",
        )
    ]
    assert told(look(trained(2), cli={"train.eval_every": 5, "data.validation": 3.5, "data.seed": -1})) != []


def test_settings_that_exclude_each_other() -> None:
    report = look(trained(2, train={"epochs": 1}), files=False)
    assert told(report, severity="error") == [
        Finding(
            "error",
            "settings",
            "train.max_steps and train.epochs are both set; keep one and set the other null",
            ("train.max_steps", "train.epochs"),
            "train section of run.yaml",
        )
    ]


def test_schedules_that_cannot_be_meant() -> None:
    (finding,) = told(look(trained(2, schedule={"min_lr": 0.5}), files=False), severity="error")
    assert (finding.topic, finding.message) == (
        "training",
        "schedule.min_lr 0.5 is larger than optimizer.lr 0.0003; try 0.0003 or less",
    )
    (note,) = told(look(trained(2, schedule={"warmup_samples": 99}), files=False), "training")
    assert (note.severity, note.keys) == ("note", ("schedule.warmup_samples", "train.max_steps"))
    assert note.message.startswith("schedule.warmup_samples 99 is longer than the run's 16 samples")


def test_gradients_are_summed_over_all_copies_of_a_parameter() -> None:
    """8 ranks, 4 shards: a linear's gradient over 4 ranks and then 2 copies, a norm's once over all 8."""
    report = look(trained(8, parallel={W: 4}, data={"max_seq_length": 64}), files=False)
    assert report.job is not None
    layout = report.job.layout

    def sums(what: str) -> list[tuple[str, int]]:
        reducing = [r for r in report.job.records if what in r.what and r.kind == "reduce_scatter"]
        return [(r.group, layout.weights.groups(r.axes).shape[1]) for r in reducing]

    assert sums("model.layers.0") == [("gtp_remat", 4), ("replica", 2)]
    assert sums("small") == [("gtp_remat_replica", 8)]
    assert "model.norm.weight" in {p.name for p in report.job.plan.small.placements}
    assert layout.batch_parallel_size == 8
