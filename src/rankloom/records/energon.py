"""Data sets prepared for Megatron-Energon: whether one is, of which kind, and what tells it from another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankloom.config.yaml_file import read_yaml
from rankloom.errors import UserError
from rankloom.records.source import open_error, short_path

__all__ = ["EnergonData", "energon_data"]

META = ".nv-meta"
INFO = (".info.json", ".info.yaml")
SPLIT = ("split.yaml", "split.json")
CRUDE = "CrudeWebdataset"
BLOCK_BYTES = 1 << 20
MAX_BLOCKS = 64
OFFSET_BYTES = 8  # of one entry of an index: where a sample begins, and last of all the size of the file


@dataclass(frozen=True)
class EnergonData:
    """One prepared data set.

    Attributes:
        path: as it was written.
        kind: a JSON Lines file, or a folder of tar files with crude samples (the parts of a sample by name).
        fingerprint: sha256 (hex) over its indices and, of a file, over its bytes (64 MiB of a larger one,
            evenly spread), of a folder over what ``energon prepare`` wrote about it and the sizes of its tar
            files. It does not depend on where the data set lies.
    """

    path: str
    kind: Literal["jsonl", "webdataset"]
    fingerprint: str

    @property
    def name(self) -> str:
        return short_path(self.path)


def energon_data(path: str) -> EnergonData:
    """What lies at ``data.path``.

    Raises:
        UserError: nothing does, it was not prepared (with the command that does), it has changed since, or it
            is prepared for samples that are no chats.
    """
    place = Path(path)
    if place.is_dir():
        return EnergonData(path, "webdataset", _folder_fingerprint(place, path))
    if not place.exists():
        raise UserError(
            f"{short_path(path)}: no such file or folder; data.path is a JSON Lines file or a folder of tar "
            "files, made ready with energon prepare (relative paths start at the working directory)"
        )
    if place.suffix in (".yaml", ".yml"):
        raise UserError(
            f"{short_path(path)}: is a metadataset, a mixture of data sets; data.path names one data set"
        )
    if place.suffix != ".jsonl":
        raise UserError(
            f"{short_path(path)}: Energon reads JSON Lines from files called *.jsonl, and tar files from "
            "their folder; data.path names one of these"
        )
    return EnergonData(path, "jsonl", _file_fingerprint(place, path))


def _file_fingerprint(file: Path, path: str) -> str:
    index = file.with_suffix(".jsonl.idx")
    command = f"energon prepare {path}"
    if not index.is_file():
        raise UserError(
            f"{short_path(path)}: is not prepared for Energon, there is no {index.name} beside it; run: "
            f"{command}"
        )
    content = _read(index)
    size, indexed = file.stat().st_size, int.from_bytes(content[-OFFSET_BYTES:], "little")
    if len(content) < 2 * OFFSET_BYTES or len(content) % OFFSET_BYTES:
        raise UserError(f"{short_path(str(index))}: is no index of a JSON Lines file; run: {command}")
    if size != indexed:
        raise UserError(
            f"{short_path(path)}: has changed since it was prepared: it has {size} bytes, its index was made "
            f"for {indexed}; run: {command}"
        )
    return _sha256(content, _sampled(file, size))


def _folder_fingerprint(folder: Path, path: str) -> str:
    meta = folder / META
    command = (
        f"energon prepare {path} --non-interactive --split-ratio 1,0,0 --sample-type {CRUDE} "
        "--force-overwrite"
    )
    info = next((meta / name for name in INFO if (meta / name).is_file()), None)
    split = next((meta / name for name in SPLIT if (meta / name).is_file()), None)
    kind = meta / "dataset.yaml"
    if info is None or split is None or not kind.is_file():
        missing = INFO[0] if info is None else SPLIT[0] if split is None else kind.name
        raise UserError(
            f"{short_path(path)}: is not prepared for Energon, there is no {META}/{missing} in it; run: "
            f"{command}"
        )
    settings = read_yaml(kind)
    sample_type = settings.get("__class__") if isinstance(settings, dict) else None
    if sample_type != CRUDE:
        raise UserError(
            f"{short_path(path)}: is prepared for samples of {sample_type or 'no named class'}; chats are "
            f"read from crude samples, each with a part .json that holds one chat; run: {command}"
        )
    tars = sorted(file for file in folder.rglob("*.tar"))
    sizes = "\n".join(f"{tar.relative_to(folder).as_posix()} {tar.stat().st_size}" for tar in tars)
    return _sha256(_read(info), _read(split), sizes.encode(), *(_read(index) for index in _indices(tars)))


def _indices(tars: list[Path]) -> list[Path]:
    """Of each tar file, where its samples begin."""
    return [index for tar in tars if (index := tar.with_suffix(".tar.idx")).is_file()]


def _sampled(file: Path, size: int) -> bytes:
    """A digest of all blocks, or of `MAX_BLOCKS` evenly spread ones."""
    num_blocks = -(-size // BLOCK_BYTES)
    read = min(num_blocks, MAX_BLOCKS)
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            for place in range(read):
                stream.seek(place * (num_blocks - 1) // max(read - 1, 1) * BLOCK_BYTES)
                digest.update(stream.read(BLOCK_BYTES))
    except OSError as error:
        raise open_error(file, error, key="data.path") from None
    return digest.digest()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise open_error(file, error, key="data.path") from None


def _sha256(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
