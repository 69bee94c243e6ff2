"""Small data sets made ready by Energon's own ``prepare``, and what to read them with."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from rankloom.data.encoding import ChatEncoder
from rankloom.data.tokenizer import train_tokenizer
from rankloom.records.energon import EnergonData, energon_data
from tests.data.chats import WORDS, chats

NUM_SAMPLES = 100


def chat(number: int) -> dict[str, Any]:
    """A chat that says its number; of varying length."""
    answer = " ".join(WORDS[number % 5 : 6 + number % 11])
    return {
        "messages": [
            {"role": "user", "content": f"number {number}"},
            {"role": "assistant", "content": answer},
        ]
    }


def jsonl(folder: Path, contents: Iterable[object]) -> EnergonData:
    """A prepared JSON Lines file; texts are lines as they are (a byte that is no UTF-8 as its surrogate)."""
    file = folder / "chats.jsonl"
    lines = (f"{c if isinstance(c, str) else json.dumps(c)}\n" for c in contents)
    file.write_bytes(b"".join(line.encode(errors="surrogateescape") for line in lines))
    prepare(file)
    return energon_data(str(file))


def webdataset(
    folder: Path, contents: Sequence[object], *, per_shard: int = 30, part: str = "json"
) -> EnergonData:
    """A prepared folder of tar files; texts are the parts as they are."""
    root = folder / "tars"
    root.mkdir()
    for start in range(0, len(contents), per_shard):
        with tarfile.open(root / f"shard_{start // per_shard:03d}.tar", "w") as tar:
            for number, content in enumerate(contents[start : start + per_shard], start=start):
                text = content if isinstance(content, str) else json.dumps(content)
                data = text.encode(errors="surrogateescape")
                info = tarfile.TarInfo(f"{number:06d}.{part}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    prepare(root)
    return energon_data(str(root))


def prepare(path: Path) -> None:
    """``energon prepare``, as the message about a data set that is not prepared says."""
    options = (
        "--non-interactive --split-ratio 1,0,0 --sample-type CrudeWebdataset --num-workers 1 --no-progress "
        "--force-overwrite"
    )
    arguments = options.split() if path.is_dir() else []
    from megatron.energon.cli.main import main

    done = CliRunner().invoke(main, ["prepare", str(path), *arguments])
    assert done.exit_code == 0, done.output


def encoder() -> ChatEncoder:
    return ChatEncoder(train_tokenizer(chats(30), max_vocab_size=400), name="the tokenizer")
