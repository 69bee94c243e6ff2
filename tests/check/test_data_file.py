"""The data file of a job: its first problems, and how much of it was looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rankloom.check.data as check_data
from rankloom.check import Report
from rankloom.config.findings import Finding
from tests.check.jobs import CHAT, look, told, trained

BAD = "not valid JSON: Expecting value at column 1"


def report_on(file: Path, **data: object) -> Report:
    return look({"data": {"train": str(file), **data}})


def messages(report: Report) -> list[tuple[str, str]]:
    return [(finding.severity, finding.message) for finding in told(report, "data")]


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(CHAT * 3)
    assert messages(report_on(file)) == []


def test_one_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(CHAT + "\n{\n" + CHAT)
    assert told(report_on(file), "data") == [
        Finding(
            "error",
            "data",
            f"{file}, line 3: not valid JSON: Expecting property name enclosed in double quotes at column 2; "
            "each line must be one whole JSON object; mend it, or leave it out with data.bad_records: skip",
            ("data.train",),
            "data section of run.yaml",
        )
    ]


def test_the_first_bad_lines_and_the_number_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(CHAT * 2 + "nope\n" * 8)
    lines = [("error", f"{file}, line {line}: {BAD}") for line in (3, 4, 5, 6, 7)]
    rest = f"{file}: 3 more bad lines; mend them, or leave them out with data.bad_records: skip"
    assert messages(report_on(file)) == [*lines, ("error", rest)]
    file.write_text("nope\n" * 6)
    assert messages(report_on(file))[-1][1].startswith(f"{file}: 1 more bad line; mend them")


def test_bad_lines_that_are_to_be_skipped_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(CHAT * 2 + "nope\n" * 2 + '{"messages": []}\n' + CHAT)
    report = report_on(file, bad_records="skip")
    assert told(report, "data") == [
        Finding(
            "warning",
            "data",
            f'{file}: 3 of 6 lines will be skipped: not valid JSON (2, first at line 3), "messages" is '
            "empty (1, first at line 5)",
            ("data.train", "data.bad_records"),
            "data section of run.yaml",
        )
    ]
    assert report.exit_code == 1


@pytest.mark.parametrize("bad_records", ["error", "skip"])
@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_an_empty_file(tmp_path: Path, content: str, bad_records: str) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(content)
    message = f"{file}: holds no record; it is empty or has only blank lines"
    assert messages(report_on(file, bad_records=bad_records)) == [("error", message)]


def test_a_file_in_which_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text("nope\nnope\n")
    ((severity, message),) = messages(report_on(file, bad_records="skip"))
    assert severity == "error"
    assert message.startswith(f"{file}: holds no usable record; all 2 lines were skipped")


@pytest.mark.parametrize("content", [bytes(range(256)), CHAT.encode("utf-16"), b"[" * 100_000, b"9" * 6000])
def test_files_of_another_kind_end_in_a_message(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_bytes(content)
    found = messages(report_on(file))
    assert found[0][0] == "error"
    assert f"{file}, line 1: not valid" in found[0][1]


def test_paths_that_hold_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path / "none.jsonl", "no such file; data.train is a JSON Lines file of chats"),
        (tmp_path / "loop", "no such file; data.train is a JSON Lines file of chats"),
        (tmp_path, "is a folder that Hugging Face datasets did not save"),
        (pipe, "is no regular file"),
        (Path("/dev/zero"), "is no regular file"),
    ):
        ((severity, found),) = messages(report_on(path))
        assert severity == "error"
        assert found.startswith(f"{path}: {message}")
    ((_, found),) = messages(report_on(Path("x" * 5000)))
    assert found == f"...{'x' * 117}: cannot be read: File name too long"


def test_of_a_large_file_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_data, "LARGEST_READ_BYTES", 2**20)
    file = tmp_path / "chats.jsonl"
    lines = 3 * 2**20 // len(CHAT)
    file.write_text(CHAT * lines + "nope\n")  # nobody gets that far
    report = report_on(file)
    assert messages(report) == [("note", f"{file}: the first 1 MiB of 2 MiB were looked at")]
    assert report.exit_code == 0


def test_nothing_is_read_where_nothing_is_named(tmp_path: Path) -> None:
    named = "data: no file is named (data.train)"
    assert named in look({"data": {"seed": 1}}).not_looked_at
    assert named in look({"train": {"global_batch_size": 1, "max_steps": 1}}).not_looked_at
    assert named not in look({"cluster": {"world_size": 2}}).not_looked_at
    assert named not in look({"data": {"train": True}}).not_looked_at  # it is named, and wrong
    assert messages(look({"data": {"train": "python-docs"}})) == []
    assert messages(look(trained(2, data={"train": str(tmp_path / "none.jsonl")}), files=False)) == []
