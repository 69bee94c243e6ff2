"""From files of every kind to tokens: in bounded memory, built once, found again, told before the start."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

import rankloom.data.identities as identities
import rankloom.data.tokenized as tokenized_module
from rankloom.config import resolve
from rankloom.data.encoding import BATCH_RECORDS, encode_records
from rankloom.data.facts import left_out
from rankloom.data.prepare import PreparedData, prepare
from rankloom.data.tokenized import Recipe, tokenized
from rankloom.data.tokenizer import train_tokenizer
from rankloom.errors import UserError
from rankloom.records import ChatRecord, Sources
from tests.data.chats import WORDS, chats

Rows = list[dict[str, object]]


def rows(count: int, *, first: int = 0) -> Rows:
    return [
        {
            "messages": [
                {"role": "user", "content": " ".join(WORDS[: 1 + i % 7])},
                {"role": "assistant", "content": f"answer {i} " + " ".join(WORDS[i % 5 : 6 + i % 11])},
            ]
        }
        for i in range(first, first + count)
    ]


def write(path: Path, records: Rows) -> str:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def run(folder: Path, train: object, **data: object) -> PreparedData:
    """Prepared as a run does it."""
    return prepare(
        resolve(
            {
                "model": {"config": {"model_type": "llama", "vocab_size": 300}},
                "data": {"train": train, "max_seq_length": 128, "cache_dir": str(folder / "cache"), **data},
                "train": {"global_batch_size": 4, "max_steps": 2},
                "cluster": {"world_size": 2},
            }
        )
    )


def texts(data: PreparedData) -> list[str]:
    return [data.tokenizer.decode(data.dataset.ids(i)) for i in range(len(data.dataset))]


def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path) -> None:
    records = rows(20)
    plain = run(tmp_path, write(tmp_path / "a.jsonl", records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    datasets.Dataset.from_list(records).save_to_disk(str(tmp_path / "set"))
    write(tmp_path / "a.jsonl.gz", records)
    write(tmp_path / "p-1.jsonl", records[:7])
    write(tmp_path / "p-2.jsonl", records[7:])
    for source in ("a.parquet", "set", "a.jsonl.gz", "p-*.jsonl"):
        found = run(tmp_path, str(tmp_path / source))
        assert texts(found) == texts(plain)
        assert [found.stream.batch(step) for step in range(5)] == [
            plain.stream.batch(step) for step in range(5)
        ]
    assert run(tmp_path, str(tmp_path / "set")).dataset.record_name(3) == f"{tmp_path}/set, row 3"
    assert run(tmp_path, f"{tmp_path}/p-*.jsonl").dataset.record_name(8) == f"{tmp_path}/p-2.jsonl, line 2"


def test_a_mixture_is_told_and_counted(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", rows(4)), write(tmp_path / "b.jsonl", rows(10, first=4))
    found = run(tmp_path, [{"path": a, "weight": 2}, {"path": b, "weight": 0.5}])
    assert found.facts[1] == (
        f"mixture of epoch 0: {a} 8 of 4 records (weight 2); {b} 5 of 10 records (weight 0.5)"
    )
    assert found.facts[0].startswith(f"data: {a} and 1 more, 14 records, ")
    assert len(found.dataset.epoch(0, seed=0)) == 13
    # The weights do not change the tokens, but they do change the run.
    plain = run(tmp_path, [a, b])
    assert plain.dataset.content_hash == found.dataset.content_hash
    assert plain.fingerprint != found.fingerprint
    assert len([path for path in (tmp_path / "cache" / "data").iterdir() if path.is_dir()]) == 1


def test_everything_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, rows(10))
    long = json.dumps({"prompt": "a", "response": "fox " * 300})
    late = json.dumps({"prompt": "fox " * 300, "response": "a"})
    silent = json.dumps(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}
    )
    with path.open("a") as stream:
        stream.write("\n".join([long, late, silent, "{", json.dumps({"messages": []})]))
    found = run(tmp_path, str(path), bad_records="skip")
    reasons = {
        "longer than data.max_seq_length": 2,
        "no trained token": 1,
        "not valid JSON": 1,
        '"messages" is empty': 1,
    }
    assert found.dataset.skipped == reasons
    assert left_out(found.dataset) == (
        '5 records (2 longer than data.max_seq_length, 1 not valid JSON, 1 "messages" is empty, '
        "1 no trained token)"
    )
    cut = run(tmp_path, str(path), bad_records="skip", overlong="truncate").dataset
    assert cut.skipped == {"no trained token": 2, "not valid JSON": 1, '"messages" is empty': 1}
    assert left_out(cut).endswith("the end of 1 record (beyond data.max_seq_length)")
    with pytest.raises(
        UserError, match=r"a\.jsonl, line 11 has \d+ tokens, data\.max_seq_length is 128 \(longer: 2 of 13"
    ):
        run(tmp_path, str(path), bad_records="skip", overlong="error")


def test_last_turns_and_all(tmp_path: Path) -> None:
    turns = [{"role": role, "content": "fox"} for role in ("user", "assistant") * 2]
    path = write(tmp_path / "a.jsonl", [{"messages": turns}])
    valid = {
        train_on: run(tmp_path, path, train_on=train_on).dataset
        for train_on in ("all_turns", "last_turn", "all")
    }
    per_turn = int(valid["last_turn"].valid[0])
    assert valid["all_turns"].valid.tolist() == [2 * per_turn]
    assert valid["all"].valid.tolist() == [valid["all"].num_tokens - 1]
    assert len({run(tmp_path, path, train_on=t).fingerprint for t in ("all_turns", "last_turn", "all")}) == 3


def test_a_validation_set_has_the_tokenizer_of_the_training_data(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", rows(20))
    other = write(
        tmp_path / "b.jsonl", [{"prompt": "q zebra?", "response": "never seen: %$"}, *rows(3, first=50)]
    )
    found = run(tmp_path, train, validation=other)
    assert found.validation is not None
    assert (len(found.dataset), len(found.validation)) == (20, 4)
    assert (
        found.tokenizer.decode(found.validation.ids(0))
        == "<|user|>q zebra?<|end|><|assistant|>never seen: %$<|end|>"
    )
    assert found.validation.record_name(0) == f"{other}, line 1"
    assert any(fact.startswith(f"validation: {other}, 4 records, ") for fact in found.facts)
    assert found.fingerprint != run(tmp_path, train).fingerprint


def test_a_share_of_the_data_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(40))
    found = run(tmp_path, path, validation_split=0.1)
    assert found.validation is not None
    assert (len(found.dataset), len(found.validation)) == (36, 4)
    assert not {*found.dataset.numbers.tolist()} & {*found.validation.numbers.tolist()}
    other_layout = run(tmp_path, path, validation_split=0.1, max_seq_length=64)
    assert other_layout.validation is not None
    assert other_layout.validation.numbers.tolist() == found.validation.numbers.tolist()
    assert any(fact.startswith(f"validation: a share of {path}, 4 records, ") for fact in found.facts)


def test_settings_of_validation_that_do_not_combine(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.jsonl", rows(8)), write(tmp_path / "b.jsonl", rows(8, first=8))
    with pytest.raises(
        UserError, match=r"data\.validation and data\.validation_split 0\.5 are both set; use one"
    ):
        run(tmp_path, path, validation=other, validation_split=0.5)
    with pytest.raises(
        UserError, match=r"data\.validation has weights; every validation record is evaluated once"
    ):
        run(tmp_path, path, validation=[{"path": other, "weight": 2}])
    with pytest.raises(UserError, match=r"c\.jsonl: no such file; data\.validation is a JSON Lines file"):
        run(tmp_path, path, validation=str(tmp_path / "c.jsonl"))


def recipe(folder: Path) -> Recipe:
    return Recipe(folder / "cache", None, "trained", "the trained tokenizer", 300)


def come(train: Sources, folder: Path, builds: str) -> None:
    build = tokenized_module._build

    def counted(*args: object) -> None:
        with open(builds, "a") as stream:
            stream.write(f"{os.getpid()}\n")
        build(*args)  # type: ignore[arg-type]

    tokenized_module._build = counted  # type: ignore[assignment]
    assert len(tokenized(train, recipe(folder)).dataset) == 60


def test_ranks_that_start_together_build_once(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl.gz", rows(60))
    builds = tmp_path / "builds"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=come, args=(train, tmp_path, str(builds))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(builds.read_text().split()) == 1


@pytest.mark.parametrize("name", ["ids.int32", "trained.bool", "index.npy", "dataset.json"])
def test_a_damaged_cache_is_built_again(name: str, tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", rows(30))
    before = tokenized(train, recipe(tmp_path))
    damaged = next((tmp_path / "cache" / "data").glob(f"*/{name}"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    after = tokenized(train, recipe(tmp_path))
    assert after.dataset.content_hash == before.dataset.content_hash
    assert next((tmp_path / "cache" / "data").glob(f"*/{name}")).read_bytes() == content


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was built would stand for the content that the file had before."""
    train = write(tmp_path / "a.jsonl", rows(30))
    write_dataset = tokenized_module.write_dataset

    def write_and_append(*args: object, **options: object) -> None:
        write_dataset(*args, **options)  # type: ignore[arg-type]
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write(json.dumps(rows(1)[0]) + "\n")

    with monkeypatch.context() as patch:
        patch.setattr(tokenized_module, "write_dataset", write_and_append)
        with pytest.raises(UserError) as caught:
            tokenized(train, recipe(tmp_path))
    assert str(caught.value) == (
        f"{train}: has changed while it was read (data.train); start again once nothing writes to it"
    )
    assert len(tokenized(train, recipe(tmp_path)).dataset) == 31


def test_records_are_not_held() -> None:
    """No more of them are read than the batch that is tokenised and the one that is rendered."""
    given = 0

    def counted() -> Iterator[ChatRecord]:
        nonlocal given
        for chat in chats(3000):
            given += 1
            yield chat

    ahead = []
    found = encode_records(counted(), train_tokenizer(chats(30)), name="it", skipped=Counter())
    for taken, (chat, _, _) in enumerate(found):
        assert chat.index == taken
        ahead.append(given - taken)
    assert len(ahead) == given == 3000
    assert max(ahead) <= 3 * BATCH_RECORDS


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are read for their identity; every file counts as large and old."""
    read: list[str] = []
    of = identities.identity_of

    def counted(file: object) -> str:
        read.append(str(file.path))  # type: ignore[attr-defined]
        return of(file)  # type: ignore[arg-type]

    monkeypatch.setattr(identities, "identity_of", counted)
    monkeypatch.setattr(identities, "SMALL_BYTES", 0)
    monkeypatch.setattr(identities, "SETTLED_S", -1.0)
    return read


def test_the_identity_of_a_large_file_is_remembered_until_it_is_touched(
    tmp_path: Path, hashed: list[str]
) -> None:
    train = write(tmp_path / "a.jsonl", rows(5))
    first = tokenized(train, recipe(tmp_path)).key
    assert tokenized(train, recipe(tmp_path)).key == first
    assert hashed == [train]
    stat = os.stat(train)
    content = Path(train).read_bytes()
    Path(train).write_bytes(content.replace(b"answer 1", b"answer 9"))
    os.utime(train, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time of change
    assert tokenized(train, recipe(tmp_path)).key != first
    assert hashed == [train, train]
