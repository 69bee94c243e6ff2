"""Built once, whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from rankloom.data.cache import cached_folder
from rankloom.errors import UserError


def build_slowly(folder: Path) -> None:
    (folder / "built").write_text(str(os.getpid()))
    time.sleep(0.2)
    (folder / "part").mkdir()
    (folder / "part" / "data").write_bytes(b"x" * 1000)


def come(root: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    folder = cached_folder(Path(root), "key", build=build_slowly)
    answers.put((folder / "built").read_text() + " " + str(len((folder / "part" / "data").read_bytes())))


def build_and_die(root: str) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        os._exit(9)

    cached_folder(Path(root), "key", build=build)


def test_four_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    killed = context.Process(target=build_and_die, args=(str(tmp_path),))
    killed.start()
    killed.join(20)
    processes = [context.Process(target=come, args=(str(tmp_path), answers)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in [killed, *processes]] == [9, 0, 0, 0, 0]
    found = {answers.get() for _ in range(4)}
    assert len(found) == 1
    assert found.pop().endswith(" 1000")
    # What the killed builder left behind is gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "removed", "added", "manifest"])
def test_a_damaged_folder_is_built_again(damage: str, tmp_path: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "data").write_bytes(b"0123456789")

    folder = cached_folder(tmp_path, "key", build=build)
    assert cached_folder(tmp_path, "key", build=build) == folder
    assert len(builds) == 1
    data = folder / "data"
    {
        "cut": lambda: data.write_bytes(b"01234"),
        "flipped": lambda: data.write_bytes(b"0123456780"),
        "removed": data.unlink,
        "added": lambda: (folder / "more").write_bytes(b""),
        "manifest": lambda: (folder / "manifest.json").write_bytes(b"\xff{"),
    }[damage]()
    assert (cached_folder(tmp_path, "key", build=build) / "data").read_bytes() == b"0123456789"
    assert len(builds) == 2


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "data").write_bytes(b"half")
        raise UserError("line 3 is bad")

    with pytest.raises(UserError, match="line 3 is bad"):
        cached_folder(tmp_path, "key", build=build)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache .*file/cache cannot be written: Not a directory.*cache_dir"):
        cached_folder(tmp_path / "file" / "cache", "key", build=build_slowly)
