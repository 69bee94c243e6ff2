"""The whole chain from settings to rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankloom.config import resolve
from rankloom.data import IGNORE, LaneLoader
from rankloom.data.prepare import PreparedData, prepare, prepare_data
from rankloom.data.tokenizer import train_tokenizer
from rankloom.errors import UserError
from tests.data.chats import chats


def chat_file(folder: Path, count: int = 40) -> str:
    lines = [
        json.dumps({"messages": [{"role": m.role, "content": m.content} for m in chat.messages]})
        for chat in chats(count)
    ]
    path = folder / "chats.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def prepared(folder: Path, **settings: object) -> PreparedData:
    given: dict[str, object] = {
        "train": str(folder / "chats.jsonl"),
        "max_seq_length": 128,
        "packing": True,
        "seed": 0,
        "global_batch_size": 4,
        "cache_dir": folder / "cache",
    }
    return prepare_data(**(given | settings))  # type: ignore[arg-type]


def model_folder(folder: Path, vocab_size: int) -> Path:
    path = folder / "model"
    path.mkdir(exist_ok=True)
    train_tokenizer(chats(40), max_vocab_size=300).save_pretrained(str(path))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": vocab_size}))
    return path


def test_a_trained_tokenizer(tmp_path: Path) -> None:
    chat_file(tmp_path)
    first = prepared(tmp_path, model_config={"vocab_size": 320})
    assert (len(first.tokenizer), first.vocab_size, first.pad_token_id) == (320, 320, 0)
    loader = LaneLoader(first.stream, first.dataset, lane=1, num_lanes=2, micro_batch_size=2)
    [batch] = loader.step(0)
    assert batch.input_ids.shape == (2, 128)
    ends = first.tokenizer.eos_token_id
    assert (batch.labels == ends).sum() == sum(len(row.records) for row in batch.rows)
    assert set(batch.labels[batch.labels != IGNORE]) <= set(range(320))
    second = prepared(tmp_path, model_config={"vocab_size": 320})
    assert second.fingerprint == first.fingerprint
    assert second.stream.batch(3) == first.stream.batch(3)
    assert [path.suffix for path in (tmp_path / "cache" / "data").iterdir()].count("") == 1


def test_a_vocabulary_larger_than_the_data_needs(tmp_path: Path) -> None:
    chat_file(tmp_path)
    found = prepared(tmp_path, model_config={"vocab_size": 5000})
    assert len(found.tokenizer) < 1000
    assert found.vocab_size == 5000
    assert prepared(tmp_path).vocab_size == len(found.tokenizer)


@pytest.mark.parametrize("change", ["seed", "data", "max_seq_length", "global_batch_size", "vocab_size"])
def test_the_fingerprint_follows_everything(change: str, tmp_path: Path) -> None:
    chat_file(tmp_path)
    first = prepared(tmp_path).fingerprint
    settings: dict[str, object] = {}
    if change == "data":
        chat_file(tmp_path, 41)
    elif change == "vocab_size":
        settings["model_config"] = {"vocab_size": 300}
    else:
        settings[change] = {"seed": 1, "max_seq_length": 120, "global_batch_size": 5}[change]
    assert prepared(tmp_path, **settings).fingerprint != first


def test_the_model_folders_own_tokenizer(tmp_path: Path) -> None:
    chat_file(tmp_path)
    found = prepared(tmp_path, model_path=str(model_folder(tmp_path, 512)))
    assert (len(found.tokenizer), found.vocab_size) == (300, 512)
    assert any(fact.startswith(f"tokenizer: {tmp_path / 'model'}, 300 tokens") for fact in found.facts)


def test_a_copy_of_the_data_is_named_by_its_own_path(tmp_path: Path) -> None:
    chat_file(tmp_path)
    prepared(tmp_path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((tmp_path / "chats.jsonl").read_bytes())
    assert prepared(tmp_path, train=str(copy)).dataset.record_name(1) == f"{copy}, line 2"


def test_a_tokenizer_larger_than_the_vocabulary(tmp_path: Path) -> None:
    chat_file(tmp_path)
    path = model_folder(tmp_path, 256)
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, model_path=str(path))
    assert str(caught.value) == (
        f"{path} has 300 tokens, the model's vocab_size is 256: tokens 256 and above would have no "
        "embedding; use a vocab_size of at least 300, or the tokenizer that belongs to the model"
    )


def test_a_model_folder_without_a_readable_config(tmp_path: Path) -> None:
    chat_file(tmp_path)
    path = model_folder(tmp_path, 300)
    (path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
        prepared(tmp_path, model_path=str(path))
    (path / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json: cannot be read: No such file"):
        prepared(tmp_path, model_path=str(path))
    with pytest.raises(UserError, match=r"model\.config: vocab_size is '9'; it is a positive whole number"):
        prepared(tmp_path, model_config={"vocab_size": "9"})


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    path = Path(chat_file(tmp_path))
    path.write_text(path.read_text() + "\n{\n")
    with pytest.raises(UserError, match=r"chats\.jsonl, line 41: not valid JSON"):
        prepared(tmp_path)
    found = prepared(tmp_path, bad_records="skip", max_seq_length=15)
    long = found.dataset.skipped["longer than data.max_seq_length"]
    assert long > 0
    assert found.dataset.skipped["not valid JSON"] == 1
    reasons = f"{long} longer than data.max_seq_length, 1 not valid JSON"
    assert f"left out: {long + 1} records ({reasons})" in found.facts
    cut = prepared(tmp_path, bad_records="skip", max_seq_length=15, overlong="truncate")
    number = cut.dataset.num_truncated
    assert (
        f"left out: 1 record (not valid JSON), the ends of {number} records (beyond data.max_seq_length)"
        in cut.facts
    )
    assert max(cut.dataset.lengths) == 15


def test_from_a_resolved_config(tmp_path: Path) -> None:
    mapping: dict[str, object] = {
        "model": {"config": {"model_type": "llama", "vocab_size": 320}},
        "train": {"global_batch_size": 4, "max_steps": 2},
        "cluster": {"world_size": 2},
    }
    with pytest.raises(
        UserError, match=r'data\.train is not set; name a JSON Lines file of chats, or "python-docs"'
    ):
        prepare(resolve(mapping))
    data = {"train": chat_file(tmp_path), "max_seq_length": 128, "cache_dir": str(tmp_path / "cache")}
    found = prepare(resolve(mapping | {"data": data}))
    assert found.fingerprint == prepared(tmp_path, model_config={"vocab_size": 320}).fingerprint
