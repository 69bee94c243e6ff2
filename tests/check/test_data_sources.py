"""Several files, tables and a validation set: the first problems of each, with line or row."""

from __future__ import annotations

import gzip
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

import rankloom.check.data as check_data
from rankloom.check import Report
from tests.check.jobs import CHAT, look, told


def messages(report: Report) -> list[tuple[str, str]]:
    return [(finding.severity, finding.message) for finding in told(report, "data")]


def refused(file: str, place: str) -> str:
    return f"{file}, {place}: no assistant turn: roles are user"


USER = '{"messages": [{"role": "user", "content": "a"}]}\n'
ROWS = [{"messages": [{"role": role, "content": "a"}]} for role in ("assistant", "user", "assistant")]


def test_the_first_problems_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(CHAT + USER)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((CHAT * 2 + USER).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "c.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "d"))
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d")]
    found = messages(look({"data": {"train": [files[0], {"path": files[1], "weight": 2}, *files[2:]]}}))
    places = ("line 2", "line 3", "row 1", "row 1")
    assert [severity for severity, _ in found] == ["error"] * 4
    for (_, message), file, place in zip(found, files, places, strict=True):
        assert message.startswith(refused(file, place))


def test_a_validation_set_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(CHAT)
    (tmp_path / "b.jsonl").write_text(CHAT + USER)
    data = {"train": str(tmp_path / "a.jsonl"), "validation": str(tmp_path / "b.jsonl")}
    report = look({"data": data})
    (finding,) = told(report, "data")
    assert finding.message.startswith(refused(str(tmp_path / "b.jsonl"), "line 2"))
    assert finding.keys == ("data.validation",)
    (_, missing), *_ = messages(look({"data": {**data, "validation": str(tmp_path / "c.jsonl")}}))
    assert missing.startswith(f"{tmp_path}/c.jsonl: no such file; data.validation is a JSON Lines file")


def test_settings_of_validation_that_do_not_combine(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(CHAT)
    weighted = [{"path": str(tmp_path / "a.jsonl"), "weight": 0.5}]
    found = messages(look({"data": {"train": str(tmp_path / "a.jsonl"), "validation": weighted}}))
    assert found == [
        ("error", "data.validation has weights; every validation record is evaluated once, remove them")
    ]
    both = {"train": "python-docs", "validation": str(tmp_path / "a.jsonl"), "validation_split": 0.1}
    assert ("error", "data.validation_split 0.1 and data.validation are both set; use one") in messages(
        look({"data": both})
    )


def test_of_large_tables_and_long_lists_the_first_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_data, "MOST_ROWS", 2)
    monkeypatch.setattr(check_data, "MAX_FILES", 1)
    monkeypatch.setattr(check_data, "LARGEST_READ_BYTES", 2**20)
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[::2] + ROWS), table)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress((CHAT * (2**21 // len(CHAT)) + "nope\n").encode()))
    assert messages(look({"data": {"train": [str(table), str(packed)]}})) == [
        ("note", f"{table}: the first 2 rows were looked at"),
        ("note", "data.train: the first 1 of 2 files were looked at"),
    ]
    assert messages(look({"data": {"train": str(packed)}})) == [
        ("note", f"{packed}: the first 1 MiB of its text were looked at")
    ]


def test_a_glob_and_a_split(tmp_path: Path) -> None:
    assert messages(look({"data": {"train": f"{tmp_path}/*.jsonl"}})) == [
        ("error", f"{tmp_path}/*.jsonl: matches no file (relative paths start at the working directory)")
    ]
    sets = {"train": datasets.Dataset.from_list(ROWS[:1]), "test": datasets.Dataset.from_list(ROWS)}
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "sets"))
    ((_, message),) = messages(look({"data": {"train": f"{tmp_path}/sets:test"}}))
    assert message.startswith(refused(f"{tmp_path}/sets:test", "row 1"))
