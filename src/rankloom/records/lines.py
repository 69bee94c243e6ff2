"""The lines of a file with their physical numbers, plain or compressed, in bounded memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from rankloom.errors import UserError
from rankloom.records.extra import extra_module
from rankloom.records.source import open_error, short_path

__all__ = ["MAX_LINE_BYTES", "numbered_lines"]

MAX_LINE_BYTES = 64 * 2**20  # of text; a longer line is no chat, and its tokens would fill the memory
BOM = b"\xef\xbb\xbf"
UNPACKED = (".gz", ".zst")
# How files begin that are no text; none of these begins a line of JSON.
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
}
LONGEST_MAGIC = max(map(len, MAGIC))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Number, from 1, and stripped bytes of every line that is not blank; None for one that is too long.

    A line ends at ``\\n`` (a ``\\r`` before it is dropped), so that numbers are those of an editor; UTF-8
    byte order marks, of which a file that was joined from several can have more than one, are passed over.
    ``.gz`` and ``.zst`` files are unpacked on the way.

    Raises:
        UserError: the file cannot be read, ends in the middle of its compressed data, or is packed in another
            way than its name says.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    _pass_over_rest(stream)
                    yield number, None
                    continue
                text = raw.removeprefix(BOM).strip(b" \t\r\n")
                if text:
                    yield number, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, number, error) from None
    except OSError as error:
        if error.errno is None:  # what pyarrow raises for a stream that ends early
            raise _damaged(path, number, error) from None
        raise open_error(path, error) from None


def _opened(path: Path) -> BinaryIO:
    _refuse_other_packing(path)
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".zst":
        pyarrow = extra_module("pyarrow", what="reading .zst files")
        packed = pyarrow.CompressedInputStream(pyarrow.OSFile(str(path), "rb"), "zstd")
        return io.BufferedReader(packed, 2**20)
    return path.open("rb")


def _refuse_other_packing(path: Path) -> None:
    with path.open("rb") as stream:
        beginning = stream.read(LONGEST_MAGIC)
    found = next((name for magic, name in MAGIC.items() if beginning.startswith(magic)), "")
    named = path.suffix if path.suffix in UNPACKED else ""
    if not beginning or found == named or (not found and named != ".gz"):  # .zst can begin in other ways too
        return
    if not found:
        raise UserError(f"{short_path(path)}: is no {named} file, though its name says so; rename it")
    what = "rename it" if found in (*UNPACKED, ".parquet") else "unpack it"
    raise UserError(f"{short_path(path)}: is a {found} file, though its name does not say so; {what}")


def _pass_over_rest(stream: BinaryIO) -> None:
    while (rest := stream.readline(2**20)) and not rest.endswith(b"\n"):
        pass


def _damaged(path: Path, number: int, error: Exception) -> UserError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:80]
    return UserError(
        f"{short_path(path)}: its compressed data are cut off or damaged after line {number}: {reason}"
    )
