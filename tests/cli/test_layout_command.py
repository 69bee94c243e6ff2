"""``rankloom layout`` as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankloom.cli import main
from rankloom.layout import GTPParallelLayout


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["layout", *arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_json_from_flags(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "--world-size", "8",
        "--tensor-model-parallel-size", "2",
        "--sequence-parallel", "true",
        "--tensor-parallel-num-weight-shards", "4",
        "--tensor-parallel-num-sequence-shards=4",
        "--rank-order", "tp-cp-gtp-dp-pp",
        "--nvlink-domain-size", "4",
        "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    printed: Any = json.loads(out)
    layout = GTPParallelLayout.resolve(
        world_size=8,
        tensor_model_parallel_size=2,
        tensor_parallel_num_weight_shards=4,
        tensor_parallel_num_sequence_shards=4,
        rank_order="tp-cp-gtp-dp-pp",
    )
    assert printed == layout.to_json(sources=printed["sources"], nvlink_domain_size=4)
    assert printed["sources"] == {
        "cluster.world_size": "cli",
        "cluster.nvlink_domain_size": "cli",
        "parallel.tensor_model_parallel_size": "cli",
        "parallel.sequence_parallel": "cli",
        "parallel.tensor_parallel_num_weight_shards": "cli",
        "parallel.tensor_parallel_num_sequence_shards": "cli",
        "parallel.context_parallel_size": "derived",
        "parallel.pipeline_model_parallel_size": "derived",
        "parallel.rank_order": "cli",
    }


def test_any_setting_may_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--parallel.rank_order", "tp-cp-gtp-dp-pp", "--cluster.world-size=4"]
    code, out, _ = run(capsys, *setting, "--json")
    printed: Any = json.loads(out)
    assert (code, printed["rank_order"], printed["sizes"]["world_size"]) == (0, "tp-cp-gtp-dp-pp", 4)


def test_a_layout_has_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--world-size", "8", "--model", "/nonexistent")
    assert code == 2
    assert "--model is not an option of this command" in err


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--world-size", "24", "--tensor-model-parallel-size", "4",
        "--tensor-parallel-num-weight-shards", "12",
    )  # fmt: skip
    assert code == 0
    words = [line.split() for line in out.splitlines()]
    assert ["tensor_parallel_num_weight_shards", "12", "cli"] in words
    assert ["gtp_remat_size", "3", "12", "/", "TP", "4"] in words
    assert ["tokens", "lane", "6", "x", "4", "0-3", "4-7", "8-11", "12-15", "16-19", "20-23"] in words
    assert ["23", "3", "0", "2", "0", "1", "0", "5", "0", "2", "1", "2"] in words
    assert "warning: 2 of 2 tp x gtp_remat groups cross NVLink domains" in out


def test_big_worlds_are_cut_short_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--world-size", "4096", "--tensor-parallel-num-weight-shards", "8")
    assert code == 0
    assert "the first 64 of 4096 ranks; rankloom layout --json prints all" in out
    assert "and 504 more" in " ".join(out.split())
    assert len(out.splitlines()) < 140


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the number of ranks is missing; give --world-size, or a config file with cluster.world_size"),
        (
            ["--world-size=24", "--tensor-model-parallel-size=4", "--tensor-parallel-num-weight-shards=10"],
            "tensor_parallel_num_weight_shards 10 is not a multiple of tensor_model_parallel_size 4;"
            " try 8 or 12 (given on the command line)",
        ),
        (["--world-size", "8", "--sequence-parallel", "1"], "--sequence-parallel is true or false, not '1'"),
        (
            ["--world-size", "8", "--nvlink-domain-size", "0"],
            "cluster.nvlink_domain_size must be an integer of at least 1, or null, not 0"
            " (given on the command line)",
        ),
        (
            ["--world-size", "8", "--fold-whole-cp", "--gtp-remat-fold-cp"],
            "--gtp-remat-fold-cp and --fold-whole-cp exclude each other; give one of them",
        ),
        (
            ["--world-size", "8", "--fold-whole-cp", "--tensor-parallel-num-sequence-shards", "2"],
            "tensor_parallel_num_sequence_shards follows from --fold-whole-cp; leave one of the two out",
        ),
        (
            ["run.yaml", "--fold-whole-cp"],
            "--fold-whole-cp translates flags, not a config file; give the settings of run.yaml as flags",
        ),
        (
            ["--world-size", "2", "--fold-whole-cp", "--context-parallel-size", "4"],
            "world_size 2 is not a multiple of 4 = tensor_parallel_num_weight_shards 4 x"
            " context_parallel_size 1 x pipeline_model_parallel_size 1; try world_size 4"
            " (given on the command line)\n"
            "--fold-whole-cp means tensor_parallel_num_weight_shards 4,"
            " tensor_parallel_num_sequence_shards 4, context_parallel_size 1",
        ),
    ],
)  # fmt: skip
def test_refusals_are_one_message_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(capsys, *arguments) == (2, "", f"rankloom layout: {message}\n")


def test_unknown_flags_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--world-sise", "8")
    assert code == 2
    assert "--world-sise is not an option of this command" in err


def test_older_spellings_are_translated_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--world-size", "16", "--context-parallel-size", "8", "--tensor-parallel-num-weight-shards", "4"]
    means = (
        "--gtp-remat-fold-cp means tensor_parallel_num_weight_shards 4,"
        " tensor_parallel_num_sequence_shards 4, context_parallel_size 2"
    )
    code, out, _ = run(capsys, *flags, "--gtp-remat-fold-cp")
    assert code == 0
    assert out.startswith(means + "\n")
    code, out, _ = run(capsys, *flags, "--gtp-remat-fold-cp", "--json")
    printed: Any = json.loads(out)
    assert printed["warnings"] == [means]
    assert printed["sizes"]["runtime_context_parallel_size"] == 8


CONFIG = """
parallel:
  tensor_parallel_num_weight_shards: 4
  tensor_parallel_num_sequence_shards: 2
  context_parallel_size: 2
cluster: {world_size: 8, nvlink_domain_size: 4}
"""


def test_a_config_file_with_flags_over_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    code, out, err = run(capsys, str(path), "--world-size", "16", "--json")
    assert (code, err) == (0, "")
    printed: Any = json.loads(out)
    assert printed["sizes"]["batch_parallel_size"] == 4
    assert printed["ranks"][15]["nvlink_domain"] == 3
    assert printed["sources"] == {
        "cluster.world_size": "cli",
        "cluster.nvlink_domain_size": "file",
        "parallel.tensor_model_parallel_size": "derived",
        "parallel.sequence_parallel": "derived",
        "parallel.tensor_parallel_num_weight_shards": "file",
        "parallel.tensor_parallel_num_sequence_shards": "file",
        "parallel.context_parallel_size": "file",
        "parallel.pipeline_model_parallel_size": "derived",
        "parallel.rank_order": "derived",
    }


def test_a_refused_config_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    code, out, err = run(capsys, str(path), "--context-parallel-size", "3")
    assert (code, out) == (2, "")
    assert "world_size 8 is not a multiple of 12 = tensor_parallel_num_weight_shards 4 x" in err
    assert "; try world_size 12, or context_parallel_size 2 (" in err
    assert f"parallel section of {path}" in err


def test_a_missing_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, str(tmp_path / "none.yaml"))
    assert code == 2
    assert "none.yaml" in err
    assert len(err.splitlines()) == 1
