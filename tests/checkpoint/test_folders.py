"""Which checkpoints are complete, which is the latest, which may go; damage is named."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankloom.checkpoint import find_checkpoint, find_latest, list_checkpoints, read_manifest, verify
from rankloom.checkpoint import folders as folders_module
from rankloom.checkpoint.folders import prepare_partial, prune
from rankloom.checkpoint.manifest import Manifest
from rankloom.errors import UserError
from tests.checkpoint.small import LAYOUT, rewrite_manifest, write_checkpoint


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_pointer_names_the_one_saved_last(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    assert find_latest(tmp_path / "nowhere") is None
    write_checkpoint(tmp_path, 20)
    write_checkpoint(tmp_path, 10)  # a run that started anew in the same folder
    assert (tmp_path / "latest").read_text() == "step-00000010\n"
    assert find_latest(tmp_path) == tmp_path / "step-00000010"


@pytest.mark.parametrize("pointer", [None, "", "step-00000099\n", "../step-00000010\n", "\0\xff"])
def test_without_a_pointer_it_is_the_newest_complete_one(tmp_path: Path, pointer: str | None) -> None:
    write_checkpoint(tmp_path, 10, saved_at=3.0)
    write_checkpoint(tmp_path, 20, saved_at=2.0)
    if pointer is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_text(pointer, encoding="latin-1")
    assert find_latest(tmp_path) == tmp_path / "step-00000010"


def test_a_damaged_latest_is_never_resumed_from(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    folder = write_checkpoint(tmp_path, 20)
    (folder / "rank-00000.safetensors").write_bytes(b"1" * 99)
    assert find_latest(tmp_path) == tmp_path / "step-00000010"
    reason = f"the checkpoint {folder} is damaged: rank-00000.safetensors has 99 bytes instead of 100"
    assert [(f.step, f.complete, f.reason) for f in list_checkpoints(tmp_path)] == [
        (10, True, ""),
        (20, False, reason),
    ]


def test_incomplete_folders_are_listed_with_the_reason(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write_checkpoint(tmp_path, step)
    prepare_partial(tmp_path / "step-00000005")
    (tmp_path / "step-00000001" / "checkpoint.json").unlink()
    (tmp_path / "step-00000002" / "rank-00000.safetensors").unlink()
    file = tmp_path / "step-00000003" / "checkpoint.json"
    file.write_text(file.read_text()[:-20])
    (tmp_path / "step-00000004").rename(tmp_path / "step-00000004.removed")
    (tmp_path / "step-6").write_text("a file")
    (tmp_path / "model").mkdir()
    reasons = {found.path.name: found.reason for found in list_checkpoints(tmp_path)}
    first, second = tmp_path / "step-00000001", tmp_path / "step-00000002"
    assert reasons.pop("step-00000003").startswith(f"{file} cannot be read: Unterminated string")
    assert reasons == {
        "step-00000001": f"{first} is not a complete checkpoint: it has no checkpoint.json",
        "step-00000002": f"the checkpoint {second} is damaged: rank-00000.safetensors is missing",
        "step-00000004.removed": "its removal did not end",
        "step-00000005.partial": "its save did not end",
    }
    assert find_latest(tmp_path) is None
    with pytest.raises(
        UserError, match=r"holds no complete checkpoint; incomplete: step-00000001 \(.*\), step"
    ):
        find_checkpoint(tmp_path)


def test_a_checkpoint_is_found_by_its_own_name_or_its_folder(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    folder = write_checkpoint(tmp_path, 2)
    assert find_checkpoint(tmp_path / "step-00000001") == tmp_path / "step-00000001"
    assert find_checkpoint(tmp_path) == folder
    shutil.copytree(folder, tmp_path / "a copy")
    assert find_checkpoint(tmp_path / "a copy") == tmp_path / "a copy"
    with pytest.raises(
        UserError, match=r"step-00000003 is not a complete checkpoint: it has no checkpoint\.json"
    ):
        find_checkpoint(tmp_path / "step-00000003")
    with pytest.raises(UserError, match=r"elsewhere holds no complete checkpoint$"):
        find_checkpoint(tmp_path / "elsewhere")


def test_verify_names_what_was_altered(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 1)
    assert verify(folder).step == 1
    file = folder / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes(content)
    assert find_latest(tmp_path) == folder  # sizes are right
    message = "is damaged: rank-00000.safetensors was altered after writing (another sha256)"
    with pytest.raises(UserError) as caught:
        verify(folder)
    assert str(caught.value) == f"the checkpoint {folder} {message}"


def test_a_manifest_that_was_altered_or_is_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 1)
    file = folder / "checkpoint.json"
    text = file.read_text()
    file.write_text(text.replace('"consumed_samples":1000', '"consumed_samples":2000'))
    with pytest.raises(UserError, match=r"checkpoint\.json cannot be read: its content was altered"):
        read_manifest(folder)
    file.write_text(text.replace('"format_version":1', '"format_version":9'))
    with pytest.raises(UserError, match=r"format version 9 is not known; this rankloom reads version 1$"):
        read_manifest(folder)
    for broken in ("[1]", "{}", '{"format_version": 1}', "\xff"):
        file.write_text(broken, encoding="latin-1")
        with pytest.raises(UserError, match=r"checkpoint\.json cannot be read"):
            read_manifest(folder)


def test_a_manifest_comes_back_the_same(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 7)
    manifest = read_manifest(folder)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.layout.resolve() == LAYOUT
    assert manifest.layout.describe() == "8 ranks: TP 2, W 4, Q 2, CP 2"
    rewrite_manifest(folder, lambda content: content["state"].update(consumed_samples=5))
    assert read_manifest(folder).state == {"consumed_samples": 5}


def test_pruning_keeps_the_latest_and_every_so_many(tmp_path: Path) -> None:
    for step in range(1, 11):
        write_checkpoint(tmp_path, step)
    prepare_partial(tmp_path / "step-00000011")
    going = prune(tmp_path, keep=2, keep_every=4, dry_run=True)
    assert len(names(tmp_path)) == 12
    assert prune(tmp_path, keep=2, keep_every=4) == going
    assert names(tmp_path) == ["latest", *(f"step-{s:08d}" for s in (4, 8, 9, 10))]
    assert prune(tmp_path, keep=None) == []


def test_pruning_goes_by_time_and_never_takes_the_latest(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        write_checkpoint(tmp_path, step, saved_at=step)
    write_checkpoint(tmp_path, 10, saved_at=400.0)  # started anew; its steps are lower
    prune(tmp_path, keep=2)
    assert names(tmp_path) == ["latest", "step-00000010", "step-00000300"]
    (tmp_path / "latest").write_text("step-00000300\n")
    prune(tmp_path, keep=1)
    assert names(tmp_path) == ["latest", "step-00000010", "step-00000300"]


def test_a_step_saved_again_replaces_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, saved_at=1.0)
    folder = write_checkpoint(tmp_path, 1, saved_at=2.0)
    assert names(tmp_path) == ["latest", "step-00000001"]
    assert read_manifest(folder).saved_at == 2.0


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kill_at", range(1, 4))
def test_killed_while_replacing_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    """At every rename of `publish`: the old or the new one is found, and the next save works."""
    write_checkpoint(tmp_path, 1, saved_at=1.0)
    count = 0
    genuine = Path.rename

    def rename(path: Path, target: Any) -> Path:
        nonlocal count
        if path.name.endswith(".json.tmp"):
            return genuine(path, target)
        count += 1
        if count == kill_at:
            raise Killed
        return genuine(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            write_checkpoint(tmp_path, 1, saved_at=2.0)
    latest = find_latest(tmp_path)
    assert latest is not None
    assert read_manifest(latest).saved_at == (1.0 if kill_at < 3 else 2.0)
    assert prune(tmp_path, keep=1, dry_run=True) != [latest]
    folder = write_checkpoint(tmp_path, 1, saved_at=3.0)
    assert find_latest(tmp_path) == folder
    prune(tmp_path, keep=1)
    assert names(tmp_path) == ["latest", "step-00000001"] or names(tmp_path) == [
        "latest",
        "latest.tmp",
        "step-00000001",
    ]


def test_the_only_copy_of_a_step_is_kept_like_any_other(tmp_path: Path) -> None:
    """Killed between the two names that a step gets which is saved again."""
    for step in (5, 10, 15, 20):
        write_checkpoint(tmp_path, step, saved_at=float(step))
    (tmp_path / "step-00000010").rename(tmp_path / "step-00000010.old")
    prepare_partial(tmp_path / "step-00000010")
    assert [(f.path.name, f.complete, f.leftover) for f in list_checkpoints(tmp_path)][1:3] == [
        ("step-00000010.old", True, False),
        ("step-00000010.partial", False, True),
    ]
    gone = prune(tmp_path, keep=1, keep_every=10)
    assert [path.name for path in gone] == ["step-00000010.partial", "step-00000005", "step-00000015"]
    assert names(tmp_path) == ["latest", "step-00000010.old", "step-00000020"]


def test_all_are_kept_but_what_killed_saves_left(tmp_path: Path) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path, step)
    (tmp_path / "step-00000030.partial").mkdir()
    (tmp_path / "step-00000005.removed").mkdir()
    (tmp_path / "step-00000020.old").mkdir()
    (tmp_path / "step-00000010" / "checkpoint.json").write_text("{")  # not looked at
    prune(tmp_path, keep=None)
    assert names(tmp_path) == ["latest", "step-00000010", "step-00000020"]


def test_a_pointer_that_cannot_be_written_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full in that moment: the pointer before would hide what was saved."""
    write_checkpoint(tmp_path, 10, saved_at=1.0)

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folders_module, "replace_text", full)
        write_checkpoint(tmp_path, 20, saved_at=2.0)
    assert names(tmp_path) == ["step-00000010", "step-00000020"]
    assert find_latest(tmp_path) == tmp_path / "step-00000020"


@pytest.mark.parametrize("name", ["../../.ssh/authorized_keys", "/etc/passwd", "a/../../b", ""])
@pytest.mark.parametrize("where", ["files", "tensors", "random"])
def test_files_elsewhere_are_no_part_of_a_checkpoint(tmp_path: Path, name: str, where: str) -> None:
    """A stranger's checkpoint could have them read, or written by an export."""
    folder = write_checkpoint(tmp_path, 10)

    def change(content: dict[str, Any]) -> None:
        if where == "files":
            content["files"][name] = {"bytes": 1, "sha256": "0" * 64}
        elif where == "tensors":
            box = {"starts": [0], "stops": [1], "file": name, "key": "x"}
            content["tensors"]["weight/x"] = {"shape": [1], "dtype": "float32", "boxes": [box]}
        else:
            content["random"]["0"] = {"file": name, "keys": []}

    rewrite_manifest(folder, change)
    with pytest.raises(UserError, match=r"cannot be read: .* is no file in its folder"):
        read_manifest(folder)


def test_a_removal_that_is_cut_short_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step)

    def cut_short(path: Path, **_: Any) -> None:
        if path.exists():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(folders_module.shutil, "rmtree", cut_short)
        with pytest.raises(Killed):
            prune(tmp_path, keep=1)
    assert [f.path.name for f in list_checkpoints(tmp_path) if f.complete] == [
        "step-00000002",
        "step-00000003",
    ]
    prune(tmp_path, keep=1)
    assert names(tmp_path) == ["latest", "step-00000003"]


def test_a_manifest_is_plain_json_and_small(tmp_path: Path) -> None:
    content = json.loads((write_checkpoint(tmp_path, 1) / "checkpoint.json").read_text())
    assert content["tensors"]["weight/model.norm.weight"] == {
        "shape": [5],
        "dtype": "float32",
        "boxes": [
            {
                "starts": [0],
                "stops": [5],
                "file": "rank-00000.safetensors",
                "key": "weight/model.norm.weight[0:5]",
            }
        ],
    }
