"""The folder of a run's checkpoints: which are complete, which is the latest, which may go.

step-00000010            a checkpoint, complete once it has this name
step-00000010.partial    one being written, or what a killed save left
step-00000010.old        the one before of the same step, until the new one is in its place
step-00000010.removed    one being removed
latest                   the name of the checkpoint that was saved last
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankloom.checkpoint.files import checksum, replace_text, sync_folder
from rankloom.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from rankloom.errors import UserError

__all__ = [
    "DamagedCheckpoint",
    "Found",
    "checkpoint_folder",
    "complete_checkpoints",
    "find_checkpoint",
    "find_latest",
    "list_checkpoints",
    "partial_folder",
    "prepare_partial",
    "prune",
    "publish",
    "read_checksum",
    "read_complete",
    "refuse_altered",
    "verify",
]

LATEST = "latest"


class DamagedCheckpoint(UserError):  # noqa: N818  (it names what is there, as UserError does)
    """Files of a checkpoint are missing, truncated or altered; another one may be whole."""


_NAME = re.compile(r"step-(\d+)(\.partial|\.old|\.removed)?")


@dataclass(frozen=True)
class Found:
    """A folder that is or was to become a checkpoint. ``manifest`` is there where it is complete; else
    ``reason`` says what is missing."""

    path: Path
    step: int
    manifest: Manifest | None
    reason: str = ""

    @property
    def complete(self) -> bool:
        return self.manifest is not None

    @property
    def leftover(self) -> bool:
        """Left by a save that was interrupted, and of no use; the next one removes it."""
        return self.path.suffix != "" and not self.complete

    @property
    def num_bytes(self) -> int:
        """Of all its files on the disk."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def checkpoint_folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}"


def partial_folder(folder: Path) -> Path:
    return folder.with_name(folder.name + ".partial")


def _old(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def list_checkpoints(directory: str | Path) -> list[Found]:
    """Everything in ``directory`` with a checkpoint's name, complete or not, by step."""
    return sorted(map(_look, _candidates(Path(directory))), key=lambda found: (found.step, found.path.name))


def _candidates(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        return
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be read: {error.strerror}") from error
    for path in map(directory.joinpath, names):
        if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _look(path: Path) -> Found:
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    step, suffix = int(match[1]), match[2]
    reasons = {".partial": "its save did not end", ".removed": "its removal did not end"}
    if suffix in reasons:
        return Found(path, step, None, reasons[suffix])
    if suffix == ".old" and path.with_suffix("").exists():
        return Found(path, step, None, "the one that replaced it is there")
    try:
        return Found(path, step, read_complete(path))
    except UserError as error:
        return Found(path, step, None, str(error))


def read_complete(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there in the sizes it says. Raises UserError."""
    manifest = read_manifest(folder)
    wrong = [
        problem
        for name, facts in manifest.files.items()
        if (problem := _size_problem(folder / name, facts.bytes))
    ]
    if wrong:
        raise DamagedCheckpoint(f"the checkpoint {folder} is damaged: {'; '.join(wrong)}")
    return manifest


def _size_problem(file: Path, num_bytes: int) -> str:
    if not file.is_file():
        return f"{file.name} is missing"
    found = file.stat().st_size
    return "" if found == num_bytes else f"{file.name} has {found:,} bytes instead of {num_bytes:,}"


def verify(folder: str | Path) -> Manifest:
    """Reads every file of a checkpoint and compares it with its checksum. Raises UserError naming those that
    are missing, truncated or altered."""
    manifest = read_complete(Path(folder))
    refuse_altered(folder, manifest, {name: read_checksum(Path(folder) / name) for name in manifest.files})
    return manifest


def read_checksum(file: Path) -> str:
    """sha256 (hex) of a file of a checkpoint. Raises DamagedCheckpoint where it cannot be read."""
    try:
        return checksum(file)
    except OSError as error:
        raise DamagedCheckpoint(f"{file} cannot be read: {error.strerror}") from error


def refuse_altered(folder: str | Path, manifest: Manifest, sums: Mapping[str, str]) -> None:
    """Raises UserError naming the files whose checksum is not the one in the manifest."""
    altered = [name for name, told in sums.items() if told != manifest.files[name].sha256]
    if altered:
        verb = "was" if len(altered) == 1 else "were"
        raise DamagedCheckpoint(
            f"the checkpoint {folder} is damaged: {', '.join(altered)} {verb} altered after writing "
            "(another sha256)"
        )


def find_latest(directory: str | Path) -> Path | None:
    """The complete checkpoint that was saved last, or None: the one ``latest`` names or, where that is
    missing or incomplete, of the others the one with the latest time."""
    return next(iter(complete_checkpoints(directory)), None)


def complete_checkpoints(directory: str | Path) -> list[Path]:
    """Those that are complete, the one that was saved last first."""
    return [found.path for found in _last_first(directory, list_checkpoints(directory))]


def _last_first(directory: str | Path, listed: Iterable[Found]) -> list[Found]:
    """Of those listed the complete ones."""
    named = None
    with suppress(OSError):  # without it, times decide
        named = (Path(directory) / LATEST).read_text(encoding="utf-8", errors="replace").strip()
    complete = [found for found in listed if found.complete]
    return sorted(complete, key=lambda found: (found.path.name == named, *_age(found)), reverse=True)


def _age(found: Found) -> tuple[float, int]:
    assert found.manifest is not None
    return found.manifest.saved_at, found.step


def find_checkpoint(path: str | Path) -> Path:
    """A checkpoint folder itself, or the latest complete one of a folder of checkpoints. Raises UserError."""
    folder = Path(path)
    if (folder / MANIFEST).is_file() or _NAME.fullmatch(folder.name):
        read_complete(folder)
        return folder
    latest = find_latest(folder)
    if latest is None:
        others = [f"{found.path.name} ({found.reason})" for found in list_checkpoints(folder)]
        more = f"; incomplete: {', '.join(others)}" if others else ""
        raise UserError(f"{folder} holds no complete checkpoint{more}")
    return latest


def prepare_partial(folder: Path) -> Path:
    """An empty folder to write ``folder`` in; what an interrupted save left in its place is removed."""
    partial = partial_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    sync_folder(partial.parent)
    return partial


def publish(folder: Path) -> None:
    """Gives a completely written folder its name, then moves ``latest`` to it."""
    old = _old(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    partial_folder(folder).rename(folder)
    sync_folder(folder.parent)
    try:
        replace_text(folder.parent / LATEST, folder.name + "\n")
    except OSError:  # such as a full disk: the checkpoint is complete, and times tell that it is the last
        (folder.parent / LATEST).unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def prune(
    directory: str | Path, *, keep: int | None, keep_every: int | None = None, dry_run: bool = False
) -> list[Path]:
    """Removes what interrupted saves left, and all but the ``keep`` complete checkpoints saved last. Those of
    steps that ``keep_every`` divides stay, and always the latest. Returns what went, or with ``dry_run``
    would go."""
    if keep is None:  # names tell enough; manifests of many ranks take seconds to read
        going = list(filter(_is_left_over, _candidates(Path(directory))))
    else:
        assert keep > 0, keep
        listed = list_checkpoints(directory)
        latest = _last_first(directory, listed)[:1]
        by_age = sorted((found for found in listed if found.complete), key=_age)
        going = [found.path for found in listed if found.leftover]
        going += [
            found.path
            for found in by_age[:-keep]
            if found not in latest and not (keep_every and found.step % keep_every == 0)
        ]
    for path in going if not dry_run else ():
        _remove(path)
    return going


def _is_left_over(path: Path) -> bool:
    return path.suffix in (".partial", ".removed") or (
        path.suffix == ".old" and path.with_suffix("").exists()
    )


def _remove(path: Path) -> None:
    """Under another name first, so that no half of it is taken for a checkpoint."""
    if path.suffix != ".removed":
        removed = path.with_name(path.name.split(".")[0] + ".removed")
        shutil.rmtree(removed, ignore_errors=True)
        path = path.rename(removed)
    shutil.rmtree(path, ignore_errors=True)
