"""Three steps and three more are six: with the same bits in one layout, within rounding in any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.parity.problems import FAMILIES
from tests.resume.runs import (
    LAYOUTS,
    OF_SUMS,
    OF_THE_LAYOUT,
    TIMES,
    Outcome,
    assert_close,
    assert_equal_bits,
    branch,
    chats,
    config,
    metrics,
    started,
    state_of,
    tensors,
    without,
)

# What is trained, besides the layout. "everything": a schedule over tokens, a batch that grows, epochs that
# end inside of it and are filled up, evaluation, recomputed activations.
PROBLEMS: dict[str, dict[str, Any]] = {
    "tied": {"model": {"config": FAMILIES["qwen3"]}},
    "untied": {"model": {"config": FAMILIES["llama"]}},
    "everything": {
        "model": {"config": FAMILIES["llama_biases_tied"]},
        "data": {
            "packing": "first_fit_decreasing",
            "packing_window": 16,
            "balance": "work",
            "validation_split": 0.2,
        },
        "train": {
            "rampup_batch_size": [8, 8, 24],
            "global_batch_size": 16,
            "gradient_checkpointing": True,
            "eval_every": 2,
        },
        "schedule": {"warmup_samples": 0, "warmup_tokens": 900, "decay": "linear", "min_lr": 1e-5},
    },
    "bfloat16": {"model": {"config": FAMILIES["qwen2"], "dtype": "bfloat16"}},
    "wsd": {
        "model": {"config": FAMILIES["mistral"]},
        "train": {"max_steps": None, "epochs": 2},
        "data": {"last_batch": "drop", "packing": False},
        "schedule": {"decay": "wsd", "warmup_samples": 8, "wsd_decay_samples": 16},
    },
}
PROBLEMS["processes"] = {
    **PROBLEMS["everything"],
    "data": {**PROBLEMS["everything"]["data"], "num_workers": 2},
}
NUM_CHATS = {"everything": 60, "processes": 60, "wsd": 27}


class Runs:
    """Undisturbed runs, each made once: a problem in a layout."""

    def __init__(self, ranks: Any, root: Path) -> None:
        self._ranks, self._root = ranks, root
        self._made: dict[tuple[str, str], Outcome] = {}

    def folder(self, problem: str) -> Path:
        folder = self._root / problem
        return folder if folder.exists() else chats(folder, count=NUM_CHATS.get(problem, 120))

    def directory(self, problem: str, where: str) -> Path:
        return self.folder(problem) / where.replace(" ", "_")

    def whole(self, problem: str, where: str) -> Outcome:
        if (problem, where) not in self._made:
            made = self.config(problem, where, self.directory(problem, where))
            self._made[problem, where] = started(self._ranks, made)
        return self._made[problem, where]

    def config(self, problem: str, where: str, directory: Path) -> dict[str, Any]:
        return config(self.folder(problem), where, directory, **PROBLEMS[problem])


@pytest.fixture(scope="module")
def runs(rank_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(rank_pool.run, tmp_path_factory.mktemp("undisturbed"))


def resumed(ranks: Any, runs: Runs, problem: str, source: str, target: str, directory: Path) -> Outcome:
    """The run of ``source`` goes on after three steps in ``target``."""
    runs.whole(problem, source)
    branch(runs.directory(problem, source), directory, step=3)
    return started(ranks, runs.config(problem, target, directory))


def long(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


SAME = [
    long("everything", "4 TP2 W4"),
    ("everything", "4 W2 CP2"),
    *(long(problem, where) for problem in ("tied", "untied") for where in LAYOUTS),
    long("everything", "8 W4"),
    long("processes", "4 W2 CP2"),
    long("bfloat16", "4 W4"),
    long("bfloat16", "2 TP2"),
    long("wsd", "4 W2 CP2"),
    long("wsd", "1"),
]


@pytest.mark.parametrize(("problem", "where"), SAME, ids=lambda text: text.replace(" ", "_"))
def test_in_the_same_layout_all_bits_are_the_same(
    ranks: Any, runs: Runs, tmp_path: Path, problem: str, where: str
) -> None:
    directory = tmp_path / "run"
    whole, undisturbed = runs.whole(problem, where), runs.directory(problem, where)
    after = resumed(ranks, runs, problem, where, where, directory)
    assert sorted(after.samples) == [4, 5, 6]
    assert without(metrics(directory), TIMES) == without(metrics(undisturbed), TIMES)
    assert after.samples == {step: whole.samples[step] for step in (4, 5, 6)}
    assert_equal_bits(tensors(directory / "step-00000006"), tensors(undisturbed / "step-00000006"))
    assert state_of(directory / "step-00000006") == state_of(undisturbed / "step-00000006")
    assert_counts_equal(after.summary, whole.summary)
    assert [note for note in after.notes if note not in whole.notes] == [
        f"resumed from {directory}/step-00000003",
        "goes on with step 4 of 6",
        f"saved {directory}/step-00000006",
    ]


def assert_counts_equal(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    counts = [name for name in want if name.startswith(("consumed", "valid", "loss_last", "epochs", "eval"))]
    assert len(counts) == 8
    assert {name: got[name] for name in counts} == {name: want[name] for name in counts}


OTHER = [
    ("everything", "4 TP2 W4", "4 W2 CP2"),
    ("everything", "4 TP2 W4", "8 W4"),
    *(
        long(problem, source, target)
        for problem, source in (("tied", "4 W4"), ("untied", "8 TP2 W4 Q4 CP2 other-order"))
        for target in LAYOUTS
        if target != source
    ),
    *(long("everything", "1", target) for target in LAYOUTS if target != "1"),
    long("processes", "4 TP2 W4", "4 W2 CP2"),
    long("wsd", "4 W2 CP2", "3 W3 Q3"),
    long("wsd", "1", "8 W4"),
]


@pytest.mark.parametrize(("problem", "source", "target"), OTHER, ids=lambda text: text.replace(" ", "_"))
def test_in_another_layout_they_are_the_same_steps(
    ranks: Any, runs: Runs, tmp_path: Path, problem: str, source: str, target: str
) -> None:
    directory = tmp_path / "run"
    whole, undisturbed = runs.whole(problem, source), runs.directory(problem, source)
    after = resumed(ranks, runs, problem, source, target, directory)
    got, want = metrics(directory), metrics(undisturbed)
    assert got[:3] == want[:3]
    assert without(got, (*OF_THE_LAYOUT, *OF_SUMS)) == without(want, (*OF_THE_LAYOUT, *OF_SUMS))
    for key in ("loss", "eval_loss"):
        for mine, theirs in zip(got, want, strict=True):
            assert mine[key] == (theirs[key] and pytest.approx(theirs[key], rel=1e-5)), (key, mine["step"])
    assert [r["grad_norm"] for r in got] == pytest.approx([r["grad_norm"] for r in want], rel=1e-4)
    assert after.samples == {step: whole.samples[step] for step in (4, 5, 6)}
    last = "step-00000006"
    assert_close(tensors(directory / last), tensors(undisturbed / last), most=1e-4)
    assert_counts_equal(
        {**after.summary, "loss_last": 0, "eval_loss": 0}, {**whole.summary, "loss_last": 0, "eval_loss": 0}
    )


def test_the_save_is_where_it_is_hard_to_go_on(ranks: Any, runs: Runs) -> None:
    """The step before it ends an epoch with fillers; the batch grows two steps after it."""
    whole = runs.whole("everything", "4 TP2 W4")
    assert [{row["epoch"] for row in whole.samples[step]} for step in range(1, 7)] == [
        {0}, {0}, {0}, {1}, {1}, {2},
    ]  # fmt: skip
    assert [len(whole.samples[step]) for step in range(1, 7)] == [8, 8, 3, 8, 11, 16]
    assert [row["global_batch_size"] for row in whole.rows] == [8, 8, 8, 8, 16, 16]


def test_a_resume_of_a_resume(ranks: Any, runs: Runs, tmp_path: Path) -> None:
    """Asked to end after two steps in each of three layouts; lanes 4, 2 and 8."""
    whole = runs.whole("everything", "4 TP2 W4")
    samples: dict[int, Any] = {}
    for number, where in enumerate(("4 W4", "4 W2 CP2", "8 W4")):
        made = runs.config("everything", where, tmp_path / "run")
        part = started(ranks, made, stop_after=2)
        assert sorted(part.samples) == [2 * number + 1, 2 * number + 2]
        samples |= part.samples
        if number < 2:
            assert part.summary["stopped"].startswith(f"after step {2 * number + 2} of 6 (")
    assert samples == whole.samples
    got, want = metrics(tmp_path / "run"), metrics(runs.directory("everything", "4 TP2 W4"))
    assert without(got, (*OF_THE_LAYOUT, *OF_SUMS)) == without(want, (*OF_THE_LAYOUT, *OF_SUMS))
    assert [r["loss"] for r in got] == pytest.approx([r["loss"] for r in want], rel=1e-5)
