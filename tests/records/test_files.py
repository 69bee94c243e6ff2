"""Every kind of file that records can come from."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from rankloom.errors import UserError
from rankloom.records import RecordStream, Tally, data_files, lines, load_records, source_identity
from rankloom.records.source import source_name, source_weights

Rows = list[dict[str, object]]


def rows(count: int, *, first: int = 0) -> Rows:
    return [
        {
            "messages": [
                {"role": "user", "content": f"question {i}"},
                {"role": "assistant", "content": f"answer {i}"},
            ]
        }
        for i in range(first, first + count)
    ]


def text_of(records: Rows) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def answers(train: str | Sequence[str | dict[str, object]]) -> list[str]:
    return [record.messages[1].content for record in load_records(train).records]


def expected(*numbers: int) -> list[str]:
    return [f"answer {i}" for i in numbers]


def pack_zst(path: Path, *parts: bytes) -> Path:
    """One frame a part, as `cat` makes them."""
    packed = [pyarrow.compress(part, codec="zstd", asbytes=True) for part in parts]
    path.write_bytes(b"".join(packed))
    return path


def test_gz_and_zst(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + text_of(rows(2))) + gzip.compress(text_of(rows(1, first=2)))
    )
    assert answers(str(packed)) == expected(0, 1, 2)
    zst = pack_zst(tmp_path / "b.jsonl.zst", text_of(rows(2)), text_of(rows(1, first=2)))
    assert answers(str(zst)) == expected(0, 1, 2)
    assert [record.line for record in load_records(str(zst)).records] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_data_that_are_cut_off_or_damaged_are_never_taken_for_the_whole(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl.{kind}"
    text = text_of(rows(2000))
    path.write_bytes(
        gzip.compress(text) if kind == "gz" else pyarrow.compress(text, codec="zstd", asbytes=True)
    )
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:8] + b"not packed at all", whole[:-4]):
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=r"compressed data are cut off or damaged after line \d+: "
        ) as caught:
            load_records(str(path), bad_records="skip")
        assert len(str(caught.value)) < 400


PACKED = {"gz": gzip.compress(b"{}\n"), "bz2": bz2.compress(b"{}\n"), "xz": lzma.compress(b"{}\n")}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", b"{}\n", "is no .gz file, though its name says so; rename it"),
        ("a.jsonl", PACKED["gz"], "is a .gz file, though its name does not say so; rename it"),
        ("a.jsonl.zst", PACKED["gz"], "is a .gz file, though its name does not say so; rename it"),
        ("a.jsonl.bz2", PACKED["bz2"], "is a .bz2 file, though its name does not say so; unpack it"),
        ("a.jsonl", PACKED["xz"], "is a .xz file, though its name does not say so; unpack it"),
        ("a.jsonl", b"PK\x03\x04...", "is a .zip file, though its name does not say so; unpack it"),
        ("a.jsonl", b"PAR1...", "is a .parquet file, though its name does not say so; rename it"),
    ],
)
def test_what_a_name_does_not_say(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_records(str(path), bad_records="skip")
    assert str(caught.value) == f"{path}: {message}"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe: is no regular file"):
        data_files(str(pipe))
    for name in ("a" * 300, "a" * 300 + "*"):
        with pytest.raises(UserError, match="cannot be read: File name too long"):
            data_files(f"{tmp_path}/{name}.jsonl")


def test_several_files_and_globs_in_order(tmp_path: Path) -> None:
    for name, first in (("part-2", 20), ("part-10", 100), ("part-1", 10)):
        (tmp_path / f"{name}.jsonl").write_bytes(text_of(rows(2, first=first)))
    (tmp_path / "other.jsonl").write_bytes(text_of(rows(1)))
    found = load_records([f"{tmp_path}/other.jsonl", f"{tmp_path}/part-*.jsonl"]).records
    assert [record.messages[1].content for record in found] == expected(0, 10, 11, 100, 101, 20, 21)
    assert [(record.file, record.line, record.index) for record in found[:4]] == [
        (0, 1, 0),
        (1, 1, 0),
        (1, 2, 1),
        (2, 1, 0),
    ]
    assert found[3].place == f"{tmp_path}/part-10.jsonl, line 1"


def test_weights_belong_to_entries(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(text_of(rows(1)))
    train = [{"path": f"{tmp_path}/a.jsonl", "weight": 2.0}, f"{tmp_path}/b.jsonl"]
    assert source_weights(train) == (2.0, 1.0)
    assert [file.source for file in data_files(train)] == [0, 1]
    assert source_name(train) == f"{tmp_path}/a.jsonl and 1 more"
    assert source_name(train[1]) == f"{tmp_path}/b.jsonl"


def test_files_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text_of(rows(1)))
    with pytest.raises(UserError, match=r"x-\*\.jsonl: matches no file \(relative paths start"):
        data_files(f"{tmp_path}/x-*.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl: is named twice in data\.train; .* a weight: \{path:"):
        data_files([str(path), f"{tmp_path}/*.jsonl"])
    with pytest.raises(UserError, match=r"b\.jsonl: no such file; data\.validation is a JSON Lines file"):
        data_files(str(tmp_path / "b.jsonl"), key="data.validation")


def test_a_bad_line_of_the_second_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(text_of(rows(3)))
    (tmp_path / "b.jsonl").write_bytes(text_of(rows(1)) + b"{\n")
    both = [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]
    with pytest.raises(UserError, match=r"b\.jsonl, line 2: not valid JSON"):
        load_records(both)
    tally = Tally()
    assert len(list(RecordStream(data_files(both), tally, bad_records="skip"))) == 4
    assert tally.skipped == {"not valid JSON": 1}
    assert [(file.path, line) for file, line in tally.first.values()] == [(both[1], 2)]
    (tmp_path / "b.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.jsonl: holds no record; it is empty"):
        load_records(both)


def test_a_gigantic_line_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    exact = json.dumps({"messages": [{"role": "assistant", "content": "x"}]})
    longest = exact.replace("x", "x" * (1001 - len(exact)))
    path.write_bytes(f"{exact}\n{longest}\n{longest} \n{'y' * 5000}\n{exact}\n{'z' * 5000}".encode())
    assert len(longest) == 1000
    found = load_records(str(path), bad_records="skip")
    assert [record.line for record in found.records] == [1, 2, 5]
    assert found.skipped == {"a gigantic line": 3}
    with pytest.raises(
        UserError, match=r"line 3: a gigantic line: no chat has more than .* MiB; a line end may be missing"
    ):
        load_records(str(path))


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(5)), path, row_group_size=2)
    found = load_records(str(path)).records
    assert [record.messages[1].content for record in found] == expected(*range(5))
    assert [record.line for record in found] == [0, 1, 2, 3, 4]
    assert found[3].place == f"{path}, row 3"


def test_rows_with_prompt_and_response(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table(
        {"prompt": ["a", "b"], "completion": ["c", None], "messages": [None, None], "n": [1, 2]}
    )
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(UserError) as caught:
        load_records(str(path))
    assert str(caught.value) == (
        f'{path}, row 1: no "messages" key: keys are "prompt", "completion", "messages". Mend the row, or '
        "leave bad records out with data.bad_records: skip"
    )
    assert [record.line for record in load_records(str(path), bad_records="skip").records] == [0]


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": [1]}), path)
    with pytest.raises(UserError, match=r'has no column of chats such as "messages"; it has text, label'):
        load_records(str(path))
    pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(UserError, match=r"a\.parquet: holds no record; it has no row"):
        load_records(str(path))
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UserError, match=r"a\.parquet: cannot be read by Parquet: "):
        load_records(str(path))


def test_a_saved_data_set(tmp_path: Path) -> None:
    folder = str(tmp_path / "set")
    datasets.Dataset.from_list(rows(6)).save_to_disk(folder)
    found = load_records(folder).records
    assert [record.messages[1].content for record in found] == expected(*range(6))
    assert found[2].place == f"{folder}, row 2"


def test_a_saved_selection_keeps_its_order(tmp_path: Path) -> None:
    folder = str(tmp_path / "set")
    datasets.Dataset.from_list(rows(6)).select([4, 0, 5]).save_to_disk(folder)
    assert answers(folder) == expected(4, 0, 5)


def test_a_split_of_several_data_sets(tmp_path: Path) -> None:
    folder = str(tmp_path / "sets")
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(rows(2)), "test": datasets.Dataset.from_list(rows(1, first=9))}
    ).save_to_disk(folder)
    assert answers(f"{folder}:test") == expected(9)
    assert load_records(f"{folder}:train").records[1].place == f"{folder}:train, row 1"
    with pytest.raises(
        UserError, match=rf"{folder}: holds several data sets: test, train; name one: .*:NAME"
    ):
        load_records(folder)
    with pytest.raises(UserError, match=rf'{folder}: has no data set "dev"; it has test, train'):
        load_records(f"{folder}:dev")


def test_a_damaged_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    datasets.Dataset.from_list(rows(6)).save_to_disk(str(folder))
    next(folder.glob("*.arrow")).write_bytes(b"")
    with pytest.raises(UserError, match=r"set: cannot be read by Hugging Face datasets: "):
        load_records(str(folder))


def test_every_kind_has_an_identity_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text_of(rows(2)))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(path.read_bytes())
    datasets.Dataset.from_list(rows(2)).save_to_disk(str(tmp_path / "set"))
    found = {source_identity(str(tmp_path / name)) for name in ("a.jsonl", "a.jsonl.gz", "set")}
    assert len(found) == 3
    assert source_identity([str(path), str(tmp_path / "set")]) not in found
    before = source_identity(str(tmp_path / "set"))
    with next((tmp_path / "set").glob("*.arrow")).open("ab") as stream:
        stream.write(b"0")
    assert source_identity(str(tmp_path / "set")) != before


@pytest.mark.parametrize(
    ("name", "library"), [("a.parquet", "pyarrow"), ("a.zst", "pyarrow"), ("set", "datasets")]
)
def test_a_missing_library_is_named_with_its_extra(
    name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "a.zst").write_bytes(b"")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{}")
    for module in ("pyarrow", "pyarrow.parquet", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf'needs {library}; install it with: pip install "rankloom\[data\]"'):
        load_records(str(tmp_path / name))
