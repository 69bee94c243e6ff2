"""Whether a data set is prepared for Energon: told without Energon, with the command that prepares it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankloom.errors import UserError
from rankloom.records.energon import energon_data

LINES = b'{"messages": []}\n{"messages": []}\n'
COMMAND = "--non-interactive --split-ratio 1,0,0 --sample-type CrudeWebdataset --force-overwrite"


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        energon_data(str(path))
    return str(refused.value)


def index(*offsets: int) -> bytes:
    return b"".join(offset.to_bytes(8, "little") for offset in offsets)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "chats.jsonl"
    made.write_bytes(LINES)
    (tmp_path / "chats.jsonl.idx").write_bytes(index(0, 17, 34))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tars"
    meta = made / ".nv-meta"
    meta.mkdir(parents=True)
    (meta / ".info.json").write_text(json.dumps({"shard_counts": {"a.tar": 2}}))
    (meta / "split.yaml").write_text("split_parts: {train: [a.tar]}")
    (meta / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    (made / "a.tar").write_bytes(b"tar")
    (made / "a.tar.idx").write_bytes(index(0, 1, 3))
    return made


def test_prepared_ones(file: Path, folder: Path) -> None:
    assert (energon_data(str(file)).kind, energon_data(str(folder)).kind) == ("jsonl", "webdataset")


def test_the_fingerprint_is_of_the_content(file: Path, folder: Path, tmp_path: Path) -> None:
    for path, changed in ((file, file), (folder, folder / "a.tar")):
        first = energon_data(str(path)).fingerprint
        moved = path.rename(tmp_path / f"moved{path.suffix}")
        if path == file:
            (tmp_path / "chats.jsonl.idx").rename(tmp_path / "moved.jsonl.idx")
        assert energon_data(str(moved)).fingerprint == first
        place = moved / "a.tar" if changed != path else moved
        place.write_bytes(LINES.replace(b"[]", b"{}"))  # the same size for the file
        assert energon_data(str(moved)).fingerprint != first


def test_a_file_that_is_not_prepared(file: Path) -> None:
    (file.parent / "chats.jsonl.idx").unlink()
    assert refusal(file) == (
        f"{file}: is not prepared for Energon, there is no chats.jsonl.idx beside it; run: "
        f"energon prepare {file}"
    )


def test_a_file_that_has_changed(file: Path) -> None:
    file.write_bytes(LINES + LINES)
    assert refusal(file) == (
        f"{file}: has changed since it was prepared: it has 68 bytes, its index was made for 34; run: "
        f"energon prepare {file}"
    )


@pytest.mark.parametrize("content", [b"", b"12345678", b"1" * 17])
def test_a_damaged_index(file: Path, content: bytes) -> None:
    (file.parent / "chats.jsonl.idx").write_bytes(content)
    assert refusal(file).endswith(
        f"chats.jsonl.idx: is no index of a JSON Lines file; run: energon prepare {file}"
    )


@pytest.mark.parametrize(
    ("name", "missing"),
    [(".info.json", ".info.json"), ("split.yaml", "split.yaml"), ("dataset.yaml", "dataset.yaml")],
)
def test_a_folder_that_is_not_prepared(folder: Path, name: str, missing: str) -> None:
    (folder / ".nv-meta" / name).unlink()
    assert refusal(folder) == (
        f"{folder}: is not prepared for Energon, there is no .nv-meta/{missing} in it; run: energon prepare "
        f"{folder} {COMMAND}"
    )


@pytest.mark.parametrize(
    ("content", "what"), [("__class__: CaptioningWebdataset", "CaptioningWebdataset"), ("", "no named class")]
)
def test_samples_that_are_no_chats(folder: Path, content: str, what: str) -> None:
    (folder / ".nv-meta" / "dataset.yaml").write_text(content)
    assert refusal(folder) == (
        f"{folder}: is prepared for samples of {what}; chats are read from crude samples, each with a part "
        f".json that holds one chat; run: energon prepare {folder} {COMMAND}"
    )


def test_what_is_no_data_set_of_energon(tmp_path: Path) -> None:
    assert refusal(tmp_path / "chats.jsonl") == (
        f"{tmp_path}/chats.jsonl: no such file or folder; data.path is a JSON Lines file or a folder of tar "
        "files, made ready with energon prepare (relative paths start at the working directory)"
    )
    for name, reason in (
        ("mix.yaml", "is a metadataset, a mixture of data sets; data.path names one data set"),
        (
            "chats.json",
            "Energon reads JSON Lines from files called *.jsonl, and tar files from their folder; data.path "
            "names one of these",
        ),
    ):
        (tmp_path / name).write_text("x")
        assert refusal(tmp_path / name) == f"{tmp_path / name}: {reason}"
