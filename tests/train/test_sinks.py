"""TensorBoard files and Weights & Biases runs: read back what a run wrote."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rankloom.config import resolve
from rankloom.errors import RunError, UserError
from rankloom.train.preflight import check_before_start
from rankloom.train.sinks import TensorBoardSink, open_sinks
from tests.runtime.runs import run as run_on_rank
from tests.runtime.runs import settings, write_chats
from tests.train import runs

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {
    "loss",
    "lr",
    "consumed_samples",
    "tokens_per_second",
    "lane_imbalance",
    "loader_wait_s",
    "padding",
}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> (step, value) of all event files in a folder, checksums verified."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack("<Q", data[at : at + 8])
            content = data[at + 12 : at + 12 + size]
            told = struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0]
            crc = crc32c(content)
            assert told == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            event = Event.FromString(content)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += 16 + size
    return found


def test_a_run_on_two_ranks_is_in_tensorboard_once(ranks: Any, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl")
    write_chats(tmp_path / "validation.jsonl", count=9, seed=1)
    config = settings(
        tmp_path,
        parallel={"tensor_parallel_num_weight_shards": 2},
        world_size=2,
        data={"validation": str(tmp_path / "validation.jsonl")},
        train={"max_steps": 3},
    )
    config["logging"] = {"tensorboard": str(tmp_path / "board")}
    rows = ranks(2, run_on_rank, config)[0]
    assert len(list((tmp_path / "board").iterdir())) == 1  # the first rank alone writes
    found = events(tmp_path / "board")
    assert set(found) >= NUMBERS
    assert [(step, pytest.approx(value, rel=1e-6)) for step, value in found["loss"]] == [
        (row["step"], row["loss"]) for row in rows
    ]
    assert [step for step, _ in found["eval_loss"]] == [3]
    assert [value for _, value in found["comm_bytes/gtp_remat"]] == [
        row["comm_bytes"]["gtp_remat"] for row in rows
    ]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"TensorBoard files cannot be written to .*file/board"):
        TensorBoardSink(tmp_path / "file" / "board")


OFFLINE = """
import sys
from rankloom.config import resolve
from rankloom.train.sinks import open_sinks
from tests.train import runs
resolved = resolve(runs.mapping(__import__("pathlib").Path(sys.argv[1])), cli={
    "logging.wandb": {"project": "looms", "name": "first"}, "cluster.world_size": 4})
sinks = open_sinks(resolved)
for step in range(1, 4):
    for sink in sinks:
        sink.write(runs.metrics(step) | ({"eval_loss": 2.5, "eval_tokens": 7} if step == 3 else {}))
for sink in sinks:
    sink.close()
"""


def log_records(data: bytes) -> Iterator[bytes]:
    """Of a log in the format of LevelDB: blocks of 32 KiB, and in them checksum, length, kind and content of
    whole records or parts of them. A header of 7 bytes comes first."""
    block, head, whole = 1 << 15, 7, b""
    at = head
    while at + head <= len(data):
        if block - at % block < head:
            at += block - at % block
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part, at = data[at + head : at + head + size], at + head + size
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield whole


def history(file: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the config in a file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        elif record.WhichOneof("record_type") == "run":
            config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            config["project"], config["name"] = record.run.project, record.run.display_name
    return rows, config


def test_an_offline_run_of_weights_and_biases(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    (file,) = (tmp_path / "run/wandb").glob("offline-run-*/*.wandb")
    rows, config = history(file)
    assert [row["_step"] for row in rows] == [1, 2, 3]
    assert [row["loss"] for row in rows] == [4.0, 2.0, 4 / 3]
    assert [row.get("eval_loss") for row in rows] == [None, None, 2.5]
    assert rows[0]["comm_bytes/tp"] == 8
    assert (config["project"], config["name"]) == ("looms", "first")
    assert config["optimizer"]["lr"] == 3e-4


@pytest.mark.parametrize(
    ("key", "value", "package", "extra"),
    [
        ("logging.tensorboard", "board", "tensorboardX", "logging"),
        ("logging.wandb", {"project": "looms"}, "wandb", "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object, package: str, extra: str
) -> None:
    resolved = resolve(runs.mapping(tmp_path), cli={key: value}, origin="run.yaml")
    check_before_start(resolved)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "rankloom.train.sinks.find_spec", lambda name: None if name == package else found(name)
    )
    with pytest.raises(UserError) as caught:
        check_before_start(resolved)
    assert str(caught.value) == (
        f"{key} needs {package}, which is not installed: pip install 'rankloom[{extra}]' (--{key})"
    )


def test_tensorboard_files_do_not_go_where_the_model_will_be(tmp_path: Path) -> None:
    inside = tmp_path / "run/model/board"
    resolved = resolve(runs.mapping(tmp_path), cli={"logging.tensorboard": str(inside)}, origin="run.yaml")
    with pytest.raises(UserError) as caught:
        check_before_start(resolved)
    assert str(caught.value) == (
        f"logging.tensorboard: {inside} lies in {tmp_path}/run/model, which the trained model replaces; set "
        "it to another folder (--logging.tensorboard)"
    )


def test_without_wishes_there_is_the_metrics_file_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (sink,) = open_sinks(resolve(runs.mapping(tmp_path)))
    row: Mapping[str, object] = runs.metrics(1)
    sink.write(row)
    sink.close()
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text()) == row
