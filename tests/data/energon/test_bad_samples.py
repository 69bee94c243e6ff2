"""Samples that cannot be trained on: named by shard and key, or left out and counted."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from collections.abc import Callable
from pathlib import Path

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.records import EnergonRecords
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import VirtualLane
from rankloom.errors import UserError
from rankloom.records.energon import EnergonData
from tests.data.chats import tokenizer_with
from tests.data.energon import datasets

NO_ASSISTANT = {"messages": [{"role": "user", "content": "hello"}]}
MEND = ". Mend the sample, or leave bad records out with data.bad_records: skip"


def contents(bad: object, *, place: int = 3, count: int = 8) -> list[object]:
    return [bad if number == place else datasets.chat(number) for number in range(count)]


def lane(data: EnergonData, encoder: ChatEncoder, **settings: object) -> VirtualLane:
    made = RowSettings(**({"max_seq_length": 64, "packing": "none"} | settings))  # type: ignore[arg-type]
    return VirtualLane(data, number=0, num_lanes=1, settings=made, seed=0, encoder=encoder)


def refusal(data: EnergonData, encoder: ChatEncoder, **settings: object) -> str:
    made = lane(data, encoder, **settings)
    with pytest.raises(UserError) as refused:
        take(made, 20)
    return str(refused.value)


def take(made: VirtualLane, count: int) -> None:
    for _ in range(count):
        made.next_row()


@pytest.mark.parametrize(
    ("make", "place"),
    [(datasets.jsonl, "chats.jsonl, sample 3"), (datasets.webdataset, "shard_000.tar, sample 000003")],
)
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (NO_ASSISTANT, "no assistant turn: roles are user"),
        ("{not json}", "not valid JSON: Expecting property"),
    ],
)
def test_the_shard_and_the_key_are_named(
    tmp_path: Path,
    encoder: ChatEncoder,
    make: Callable[..., EnergonData],
    place: str,
    bad: object,
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = make(tmp_path, contents(bad))
    for packing in ("none", "greedy"):
        said = refusal(data, encoder, packing=packing)
        assert said.startswith(f"{place}: {reason}")
        assert said.endswith(MEND)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"messages": "\udcff"}', "not valid UTF-8: byte 0xff at byte 15 of the line"),
        ('{"a": 1' + "0" * 5000 + "}", "not valid JSON: ValueError, Exceeds the limit (4300 digits)"),
    ],
)
@pytest.mark.parametrize("make", [datasets.jsonl, datasets.webdataset])
def test_bytes_that_cannot_be_read_are_bad_records_in_both(
    tmp_path: Path, encoder: ChatEncoder, make: Callable[..., EnergonData], bad: str, reason: str
) -> None:
    data = make(tmp_path, contents(bad))
    assert f"sample {'3' if data.kind == 'jsonl' else '000003'}: {reason}" in refusal(data, encoder)
    made = lane(data, encoder, bad_records="skip")
    take(made, 14)
    assert set(made.skipped) == {reason.split(":")[0]}
    assert len(list(EnergonRecords(data))) == 7


def test_what_python_cannot_read_is_named(tmp_path: Path, encoder: ChatEncoder) -> None:
    data = datasets.jsonl(tmp_path, contents('{"a":' * 100_000 + "1" + "}" * 100_000))
    said = refusal(data, encoder, bad_records="skip")
    assert "chats.jsonl, sample 3: RecursionError: maximum recursion depth" in said
    assert len(said) < 400
    with pytest.raises(UserError, match=r"chats\.jsonl, sample 3: RecursionError: maximum recursion depth"):
        list(EnergonRecords(data))


@pytest.mark.parametrize("make", [datasets.jsonl, datasets.webdataset])
def test_bad_ones_are_left_out_and_counted(
    tmp_path: Path, encoder: ChatEncoder, make: Callable[..., EnergonData]
) -> None:
    samples = contents(NO_ASSISTANT)
    samples[5] = "{not json}"
    made = lane(make(tmp_path, samples), encoder, bad_records="skip")
    rows = [made.next_row() for _ in range(6)]
    assert sorted(row.chats[0].number for row in rows) == [0, 1, 2, 4, 6, 7]
    assert made.next_row().epoch == 1
    take(made, 5)
    assert made.next_row().epoch == 2
    assert set(made.skipped) == {"no assistant turn", "not valid JSON"}
    assert set(made.skipped.values()) <= {2, 3}  # 3: it is met in the third epoch already


def test_long_chats(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    longest = 24
    whole = lane(jsonl, encoder)
    lengths = {row.chats[0].number: len(row.chats[0].ids) for row in (whole.next_row() for _ in range(100))}
    too_long = sorted(number for number, length in lengths.items() if length > longest)
    assert 0 < len(too_long) < 100

    made = lane(jsonl, encoder, max_seq_length=longest, overlong="drop")
    kept = sorted(made.next_row().chats[0].number for _ in range(100 - len(too_long)))
    assert kept == sorted(set(range(100)) - set(too_long))
    assert made.next_row().epoch == 1
    left_out = made.skipped["longer than data.max_seq_length"]
    assert len(too_long) <= left_out <= 2 * len(too_long)

    made = lane(jsonl, encoder, max_seq_length=longest, overlong="truncate")
    found = [made.next_row().chats[0] for _ in range(100)]
    assert sorted(chat.number for chat in found if chat.truncated) == too_long
    assert max(len(chat.ids) for chat in found) == longest

    said = refusal(jsonl, encoder, max_seq_length=longest, overlong="error")
    number = int(said.split("sample ")[1].split()[0])
    assert said == (
        f"chats.jsonl, sample {number} has {lengths[number]} tokens, data.max_seq_length is {longest}; raise "
        "data.max_seq_length, or set data.overlong to drop or truncate"
    )


def test_a_virtual_lane_without_a_sample_to_train_on_is_refused(
    jsonl: EnergonData, encoder: ChatEncoder
) -> None:
    assert refusal(jsonl, encoder, max_seq_length=4).endswith(
        "chats.jsonl, virtual lane 0 of 1: no sample is left to train on (100 longer than "
        "data.max_seq_length)"
    )


def test_a_sample_without_a_chat_part_is_named(tmp_path: Path, encoder: ChatEncoder) -> None:
    data = datasets.webdataset(tmp_path, [datasets.chat(n) for n in range(4)], part="txt")
    assert refusal(data, encoder).endswith(': has no part "json" with a chat; its parts are txt')


def test_what_energon_cannot_read_is_no_traceback(tmp_path: Path, encoder: ChatEncoder) -> None:
    data = datasets.webdataset(tmp_path, [datasets.chat(n) for n in range(8)])
    (Path(data.path) / "shard_000.tar").write_bytes(b"nothing")
    said = refusal(data, encoder)
    assert "\n" not in said
    assert "shard_000.tar" in said or "virtual lane 0 of 1: Energon cannot read it" in said


def test_what_the_template_refuses_is_told_with_its_name(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}"
        "{% if 'number 3' in m['content'] %}{{ raise_exception('no threes') }}{% endif %}"
        "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|end|>' }}{% endgeneration %}"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
    encoder = ChatEncoder(tokenizer_with(template, eos_token="<|end|>"), name="mine")
    assert refusal(datasets.jsonl(tmp_path, contents(datasets.chat(3))), encoder) == (
        "chats.jsonl, sample 3: the chat template refuses the record: no threes (chat template of mine)"
        + MEND
    )
