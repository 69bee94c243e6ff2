"""What a run would write: nothing is made, and what cannot be written or would be lost is told."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rankloom.check import Report
from rankloom.config.findings import Finding
from rankloom.plan.exported import mark_exported
from tests.check.jobs import look, model_folder, told, trained

Usage = namedtuple("Usage", "total used free")


def report_on(folder: Path, **sections: Mapping[str, object]) -> Report:
    checkpoint = {"dir": str(folder), **sections.pop("checkpoint", {})}
    return look(trained(2, checkpoint=checkpoint, **sections))


def outputs(report: Report) -> list[tuple[str, tuple[str, ...], str]]:
    return [(finding.message, finding.keys, finding.where) for finding in told(report, "outputs")]


def test_nothing_is_made(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    report = report_on(tmp_path / "runs" / "x", logging={"metrics": str(tmp_path / "m" / "metrics.jsonl")})
    assert (outputs(report), report.exit_code) == ([], 0)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for place in ("file", "gone"):
        folder = tmp_path / place / "x"
        assert outputs(report_on(folder)) == [
            (
                f"checkpoint.dir: the folder {folder} cannot be made: {tmp_path / place} is no folder",
                ("checkpoint.dir",),
                "checkpoint section of run.yaml",
            )
        ]


def test_folders_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path))
    (message, _, _) = outputs(report_on(tmp_path))[0]
    assert message == f"checkpoint.dir: the folder {tmp_path} is not writable"
    (message, _, _) = outputs(report_on(tmp_path / "x"))[0]
    assert message == (
        f"checkpoint.dir: the folder {tmp_path / 'x'} cannot be made: {tmp_path} is not writable"
    )


def test_links_that_go_round_in_circles_and_names_that_are_too_long(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path / "loop" / "x", tmp_path / ("x" * 5000)):
        report = report_on(folder)
        assert report.exit_code == 2
        assert outputs(report)[0][1] == ("checkpoint.dir",)


def test_a_metrics_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("do not lose this\n")
    assert outputs(report_on(tmp_path / "x", logging={"metrics": str(file)})) == [
        (
            f"logging.metrics: {file} is not a metrics file, and is left as it is: line 1 is no metrics row; "
            "move it away, or set logging.metrics to another path",
            ("logging.metrics",),
            "logging section of run.yaml",
        )
    ]
    assert file.read_text() == "do not lose this\n"
    (tmp_path / "logs").mkdir()
    (found,) = outputs(report_on(tmp_path / "x", logging={"metrics": str(tmp_path / "logs")}))
    assert found[0] == f"logging.metrics: {tmp_path / 'logs'} is a folder; it must be a file"


def test_inputs_are_not_written_over(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text("")
    report = report_on(tmp_path, data={"train": [str(data)]}, logging={"metrics": str(data)})
    assert outputs(report)[0][0] == f"logging.metrics: {data} is data.train; set it to another path"
    folder = model_folder(tmp_path / "model")
    report = report_on(tmp_path, model={"config": None, "path": str(folder)})
    assert outputs(report)[0][0] == (
        f"checkpoint.dir: the trained model would replace {folder}, which overlaps with model.path {folder}; "
        "set checkpoint.dir to another folder"
    )
    inside = folder / "validation.jsonl"
    inside.write_text("")
    report = report_on(tmp_path, data={"validation": str(inside)})
    assert f"which overlaps with data.validation {inside}" in outputs(report)[0][0]


def test_a_model_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    report = report_on(tmp_path)
    assert outputs(report) == []
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_text("mine")
    assert outputs(report_on(tmp_path)) == [
        (
            f"checkpoint.dir: {folder} was not written by rankloom (a folder that was holds rankloom.json), "
            "and an export would replace it; move it away, or set checkpoint.dir to another folder",
            ("checkpoint.dir",),
            "checkpoint section of run.yaml",
        )
    ]
    assert report.examined.layout is not None
    mark_exported(folder, report.examined.layout, version="1")
    assert outputs(report_on(tmp_path)) == []


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_free(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))

    return set_free


# Of LLAMA: 2 x 512 x 64 in embedding and head, 4 layers of 64 x (64 + 2 x 32 + 64 + 3 x 96) + 2 x 64, and a
# last norm of 64.
NUM_PARAMETERS = 2 * 512 * 64 + 4 * (64 * (64 + 2 * 32 + 64 + 3 * 96) + 2 * 64) + 64


@pytest.mark.parametrize(("dtype", "element"), [("float32", 4), ("bfloat16", 2)])
def test_room_for_the_final_model(
    tmp_path: Path, room: Callable[[int], None], dtype: str, element: int
) -> None:
    needed = NUM_PARAMETERS * element
    room(needed)
    assert told(report_on(tmp_path / "x", model={"dtype": dtype})) == []
    room(needed - 1000)
    report = report_on(tmp_path / "x", model={"dtype": dtype})
    (finding,) = report.findings
    assert finding == Finding(
        "warning",  # the job may run on another machine
        "outputs",
        f"checkpoint.dir {tmp_path / 'x'}: {(needed - 1000) / 1000:.0f} kB are free here, and the run writes "
        f"{needed / 1000:.0f} kB for the final model",
        ("checkpoint.dir",),
        "checkpoint section of run.yaml",
    )
    assert report.exit_code == 1


def test_room_for_checkpoints(tmp_path: Path, room: Callable[[int], None]) -> None:
    model, checkpoint = NUM_PARAMETERS * 4, NUM_PARAMETERS * 16
    settings = {"save_every": 5, "keep": 2}
    room(model + 3 * checkpoint)
    assert told(report_on(tmp_path, checkpoint=settings), severity="warning") == []
    room(model + 3 * checkpoint - 1)
    (finding,) = told(report_on(tmp_path, checkpoint=settings), severity="warning")
    assert finding.message.endswith(
        f"the run writes {model / 1000:.0f} kB for the final model, and {3 * checkpoint / 1e6:.2f} MB for "
        "3 checkpoints (checkpoint.keep 2, and one in the making)"
    )


def test_a_disk_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert told(report_on(tmp_path)) == []


def test_default_places_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    (message, keys, where) = outputs(look(trained(2)))[0]
    assert (keys, where) == (("checkpoint.dir",), "the default")
    assert message.startswith("checkpoint.dir: the folder runs/rankloom cannot be made")


def test_metrics_of_an_earlier_run_are_fine(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert outputs(report_on(tmp_path)) == []
