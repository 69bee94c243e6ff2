from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankloom.errors import RunError, UserError
from rankloom.train.metrics import METRICS_KEYS, MetricsFile
from tests.train import runs


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_rows_have_all_keys_in_order_and_are_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "made" / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.write(dict(reversed(runs.metrics(1).items())))
        assert tuple(json.loads(path.read_text())) == METRICS_KEYS


def test_rows_after_the_restored_step_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in range(1, 6):
            metrics.write(runs.metrics(step))
    path.open("a").write('{"step": 6, "lo')  # cut short
    with MetricsFile(path, keep_through_step=3) as metrics:
        metrics.write(runs.metrics(4))
    assert steps(path) == [1, 2, 3, 4]


def test_zeros_in_the_place_of_the_last_rows_are_removed(tmp_path: Path) -> None:
    """What some file systems leave after a crash of the machine."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in (1, 2):
            metrics.write(runs.metrics(step))
            metrics.sync()
    whole = path.read_bytes()
    for end in (b"\0" * 100, b'{"step": 3, "lo' + b"\0" * 100):
        path.write_bytes(whole + end)
        with MetricsFile(path, keep_through_step=9) as metrics:
            metrics.write(runs.metrics(3))
        assert steps(path) == [1, 2, 3]
    MetricsFile("/dev/null").sync()
    path.write_bytes(bytes(100))
    with pytest.raises(UserError, match="is not a metrics file"):
        MetricsFile(path)


def test_a_fresh_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(runs.metrics(1)) + "\n")
    MetricsFile(path).close()
    assert path.read_text() == ""


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    with MetricsFile(tmp_path / "metrics.jsonl") as metrics:
        metrics.write(runs.metrics(1) | {"grad_norm": float("inf")})
    assert json.loads(metrics.path.read_text())["grad_norm"] is None


def test_other_keys_are_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with MetricsFile(tmp_path / "metrics.jsonl") as metrics, pytest.raises(ValueError, match="has the keys"):
        metrics.write({"step": 1})


@pytest.mark.parametrize(
    "content",
    [
        "model:\n  path: base\n",
        '{"messages": []}\n',
        '{"step": 1}\n',
        "one line",
        '["step"]\n',
        "\xff\n",
        "\n",
    ],
)
def test_other_content_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.yaml"
    before = (json.dumps(runs.metrics(1)) + "\n" + content).encode("latin-1")
    for text in (before, content.encode("latin-1")):
        path.write_bytes(text)
        with pytest.raises(UserError, match="is not a metrics file, and is left as it is"):
            MetricsFile(path)
        assert path.read_bytes() == text


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no file"):
        MetricsFile(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    with (
        MetricsFile("/dev/full") as metrics,
        pytest.raises(RunError, match="metrics file /dev/full cannot be"),
    ):
        metrics.write(runs.metrics(1))
