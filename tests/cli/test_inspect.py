"""``rankloom inspect``: what it shows is what transformers makes of the chats, and what training gets."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from transformers import AutoTokenizer

from rankloom.cli.overrides import parse_overrides
from rankloom.config import load
from rankloom.data.inspect import Records
from rankloom.data.inspect.display import print_view
from rankloom.data.inspect.texts import TokenTexts
from rankloom.data.inspect.token_lines import BORDER, token_lines, visible
from rankloom.data.tokenizer import train_tokenizer
from tests.cli.inspecting import CHATS, printed, reference, run, shown, write_chats
from tests.data.chats import chats

TEMPLATE_WITHOUT_MARKERS = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def test_a_record_is_what_transformers_makes_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained("model")
    for place in (0, 1, 2, 4, 5):
        view = printed(capsys, "--sample", str(place))
        ids, trained = reference(place)
        assert (view["ids"], view["trained"]) == (ids, trained)
        messages = [{"role": role, "content": content} for role, content in CHATS[place]]
        assert view["text"] == tokenizer.apply_chat_template(messages, tokenize=False)
        assert "".join(view["texts"]) == view["text"]
        answers = [content + "<|end|>" for role, content in CHATS[place] if role == "assistant"]
        assert [view["text"][a:b] for a, b in view["spans"]] == answers
        assert view["special"] == [number in tokenizer.all_special_ids for number in ids]
        assert (view["sample"], view["name"], view["left_out"]) == (
            place,
            f"chats.jsonl, line {place + 1}",
            "",
        )
        assert view["num_kept"] == len(ids)
        assert view == printed(capsys, "--line", str(place + 1))


def test_a_special_token_that_a_message_spells_is_no_special_token(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = printed(capsys, "--sample", "3")
    assert view["text"].count("<|end|>") == 4
    special = [text for text, is_special in zip(view["texts"], view["special"], strict=True) if is_special]
    assert special == ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]
    assert "".join(view["texts"]) == view["text"]


RECORD = """\
Record 2: chats.jsonl, line 3
 42 tokens, 22 of them trained
 trained of its 64 characters: 46-63, as the {% generation %} markers of the
 chat template say

  token   text (+ trained)
      0   <|user|>│H│e│l│l│o│ i│n│ │J│a│p│a│n│e│s│e│?│<|end|>│<|assistant|>│
     20 + S│a│y│⏎│
     24 + ⏎│
     25 + ⇥│││こ│││ん│││に│││ち│││は│<|end|>│
 an empty token is a part of the character behind it
"""

LANE = """\
Step 1 of 4, lane 1 of 2, epoch 0

Rows of 64 tokens
 microbatch  row  records  tokens  padding  labels
          0    1        1      42       22      22
          1    3        2      59        5      18
 labels: tokens predicted

Context ranks
 context  of each row   tokens  labels  ranks
       0  0-15, 48-63       43       9  1
       1  16-31, 32-47      58      31  3
 tokens and labels: of all rows, without padding

Row 1, microbatch 0
  token  position  context   text (+ predicted)
 chats.jsonl, line 3: 42 tokens, 22 labels
      0         0        0   <|user|>│H│e│l│l│o│ i│n│ │J│a│p│a│n│e│s│
     16        16        1   e│?│<|end|>│<|assistant|>│
     20        20        1 + S│a│y│⏎│
     24        24        1 + ⏎│
     25        25        1 + ⇥│││こ│││ん│││に│││ち│││は│<|end|>│
     42         0        1   padding, 6 tokens
     48         6        0   padding, 16 tokens
 an empty token is a part of the character behind it

Row 3, microbatch 1
  token  position  context   text (+ predicted)
 chats.jsonl, line 5: 26 tokens, 16 labels
      0         0        0   <|user|>│T│h│a│n│k│s│!│<|end|>│<|assistant|>│
     10        10        0 + Y│o│u│ a│r│e│
     16        16        1 +  │w│e│l│c│o│m│e│.│<|end|>│
 chats.jsonl, line 1: 33 tokens, 2 labels
     26         0        1   <|system|>│A│n│s│w│er│ │br│i│e│f│l│y│.│<|end|>│
     41        15        1   <|user|>│W│h│a│t│ i│s│
     48        22        0    │2│ │+│ │2│?│<|end|>│<|assistant|>│
     57        31        0 + 4│<|end|>│
     59         0        0   padding, 5 tokens

"""

OVERVIEW = """\
Data
 data: chats.jsonl, 6 records, 238 tokens, 52.5% of them trained
 tokenizer: model, 300 tokens
 rows: 5 of 64 tokens in epoch 0, 25.6% padding
 steps: 2 in epoch 0 with 4 rows a step
 last batch of epoch 0: 3 of its rows are empty fillers

Steps 1 to 4 of 4
 step  rows  fillers  records  tokens  padding  labels
    1     4        0        5     204    20.3%     113
    2     4        3        1      34    86.7%      12
    3     4        0        5     177    30.9%      73
    4     4        3        1      61    76.2%      52
 labels: tokens predicted

Look closer
 rankloom inspect run.yaml --sample 0
   a record, 0 to 5
 rankloom inspect run.yaml --step 1 --lane 0
   what a lane gets: steps 1 to 4, lanes 0 to 1
"""

CUT = """\
Record 1: chats.jsonl, line 2
 34 tokens, 12 of them trained, 10 tokens cut off
 trained of its 96 characters: 39-50  84-95, as the {% generation %} markers of
 the chat template say

  token   text (+ trained, - cut off)
      0   <|user|>│T│w│o│ │p│r│i│m│e│s│?│<|end|>│<|assistant|>│
     14 + 2│,│ │3│.│<|end|>│
     20   <|user|>│M│o│r│
     24 - e│?│<|end|>│<|assistant|>│5│,│ │7│.│<|end|>│
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sample", "2"], RECORD),
        (["--step", "1", "--lane", "1", "--data.max_seq_length", "64"], LANE),
        (["--data.max_seq_length", "64"], OVERVIEW),
        (["--sample", "1", "--data.max_seq_length", "24", "--data.overlong", "truncate"], CUT),
    ],
)
def test_printed(
    arguments: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, *arguments) == expected.splitlines()


LAYOUTS = {
    "two lanes, context 2": {},
    "one lane, tp 2 with sp, context 2": {
        "parallel.tensor_model_parallel_size": 2,
        "cluster.world_size": 4,
    },
    "4 lanes": {"parallel.context_parallel_size": 1, "parallel.tensor_parallel_num_weight_shards": 4},
    "balanced": {"data.balance": "work"},
    "other packing": {"data.packing": "first_fit_decreasing", "train.micro_batch_size": 2},
    "no packing, ramp": {"data.packing": False, "train.rampup_batch_size": "[2, 2, 4]"},
    "dropped batch": {"data.last_batch": "drop", "data.packing": False},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_lanes_against_brute_force(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [word for key, value in LAYOUTS[name].items() for word in (f"--{key}", str(value))]
    resolved = load("run.yaml", cli=parse_overrides(overrides))
    layout = resolved.layout
    overview = printed(capsys, *overrides)
    names_by_epoch: dict[int, list[str]] = {}
    for step in range(1, overview["num_steps"] + 1):
        for lane in range(overview["num_lanes"]):
            view = printed(capsys, *overrides, "--step", str(step), "--lane", str(lane))
            assert (view["step"], view["lane"], view["sequence_length"]) == (step, lane, 128)
            rows = [row for microbatch in view["microbatches"] for row in microbatch]
            for row in rows:
                check_row(row)
            check_contexts(view, layout, rows)
            names = [record["name"] for row in rows for record in row["records"]]
            names_by_epoch.setdefault(view["epoch"], []).extend(names)
    if "drop" not in name:
        assert [sorted(names) for names in names_by_epoch.values()] == [
            [f"chats.jsonl, line {line}" for line in range(1, 7)]
        ] * 2


def check_row(row: Any) -> None:
    """A row by the records it names, tokenised by transformers."""
    ids: list[int] = []
    positions, documents, trained = [], [], []
    for document, record in enumerate(row["records"]):
        place = int(record["name"].split()[-1]) - 1
        if place == 3:  # transformers takes its text for special tokens
            its_ids = row["ids"][record["start"] : record["stop"]]
            its_mask = row["trained"][record["start"] : record["stop"]]
        else:
            its_ids, its_mask = reference(place)
        assert (record["start"], record["stop"]) == (len(ids), len(ids) + len(its_ids))
        assert record["labels"] == sum(its_mask)
        ids += its_ids
        trained += its_mask
        positions += range(len(its_ids))
        documents += [document] * len(its_ids)
    padding = 128 - len(ids)
    assert row["num_tokens"] == len(ids)
    assert row["ids"] == ids + [0] * padding
    assert row["trained"] == trained + [False] * padding
    assert row["positions"] == positions + list(range(padding))
    assert row["documents"] == documents + [len(row["records"])] * padding
    following = zip(row["ids"][1:], row["trained"][1:], strict=True)
    assert row["labels"] == [token if is_trained else -100 for token, is_trained in following] + [-100]
    assert row["texts"][len(ids) :] == [""] * padding
    assert (row["row"] is None) == (row["records"] == [])


def check_contexts(view: Any, layout: Any, rows: Any) -> None:
    size = layout.runtime_context_parallel_size
    chunk = 128 // (2 * size)
    for context in view["contexts"]:
        at = context["context"]
        held = [t for t in range(128) if size == 1 or t // chunk in (at, 2 * size - 1 - at)]
        assert [t for a, b in context["pieces"] for t in range(a, b)] == held
        assert context["ranks"] == [
            rank for rank in layout.ranks
            if layout.lane(rank) == view["lane"] and layout.coords(rank).context == at
        ]  # fmt: skip
        assert context["num_tokens"] == sum(t < row["num_tokens"] for row in rows for t in held)
        assert context["num_labels"] == sum(row["labels"][t] != -100 for row in rows for t in held)
    assert [context["context"] for context in view["contexts"]] == list(range(size))


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
@pytest.mark.parametrize("max_seq_length", [12, 24, 32, 44, 64])
def test_reasons_are_those_that_are_counted(
    overlong: str, max_seq_length: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = load("run.yaml", cli={"data.overlong": overlong, "data.max_seq_length": max_seq_length})
    records = Records(resolved)
    views = [records.sample(place) for place in range(len(records))]
    options = ("--data.overlong", overlong, "--data.max_seq_length", str(max_seq_length))
    code, out, err = run(capsys, *options, "--json")
    if code:
        assert "no record is left to train on" in err
        assert all(view.left_out for view in views)
        return
    overview = json.loads(out)
    counted = dict.fromkeys(overview["left_out"], 0)
    for view in views:
        if view.left_out:
            [reason] = [reason for reason in counted if view.left_out.startswith(reason)]
            counted[reason] += 1
    assert counted == overview["left_out"]
    assert sum(not view.left_out for view in views) == overview["num_records"]


def test_what_becomes_of_a_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--data.max_seq_length", "24")
    assert shown(capsys, "--sample", "1", *short)[1] == " left out: longer than data.max_seq_length 24"
    assert shown(capsys, "--sample", "1", *short, "--data.overlong", "error")[1] == (
        " left out: longer than data.max_seq_length 24; data.overlong: error ends the run"
    )
    short = ("--data.max_seq_length", "16", "--data.overlong", "truncate")
    assert (
        shown(capsys, "--sample", "2", *short)[1] == " left out: no trained token before its end is cut off"
    )


def test_held_out_records_are_those_of_the_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--data.validation_split", "0.5", "--data.seed", "3")
    held_out = {
        place
        for place in range(6)
        if printed(capsys, "--sample", str(place), *options)["left_out"]
        == "held out for validation (data.validation_split)"
    }
    assert len(held_out) == 3
    step = [printed(capsys, "--step", "1", "--lane", str(lane), *options) for lane in (0, 1)]
    trained = {
        int(record["name"].split()[-1]) - 1
        for view in step for microbatch in view["microbatches"] for row in microbatch
        for record in row["records"]
    }  # fmt: skip
    assert trained == set(range(6)) - held_out


def test_a_template_without_markers_and_other_choices(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = shown(capsys, "--sample", "1", "--data.train_on", "last_turn")
    assert last[2:4] == [
        " trained of its 96 characters: 84-95, as the {% generation %} markers of the",
        " chat template say",
    ]
    everything = printed(capsys, "--sample", "1", "--data.train_on", "all")
    assert (everything["spans"], everything["spans_by"]) == ([[0, 96]], "all")
    assert all(everything["trained"])
    marked = printed(capsys, "--sample", "1")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE_WITHOUT_MARKERS)
    derived = printed(capsys, "--sample", "1")
    assert (marked.pop("spans_by"), derived.pop("spans_by")) == ("markers", "renderings")
    assert derived == marked


def test_bad_lines_and_chats_that_the_template_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "chats.jsonl").open("a") as stream:
        stream.write('\n{"messages": []}\n')
        turn = {"role": "assistant", "content": "Hm.", "name": "Bob"}
        stream.write(json.dumps({"messages": [turn]}) + "\n")
    code, _, err = run(capsys, "--sample", "0")
    assert code == 2
    assert err == (
        'rankloom inspect: chats.jsonl, line 8: "messages" is empty. Mend the line, or leave bad records out '
        "with data.bad_records: skip\n"
    )
    skip = ("--data.bad_records", "skip")
    assert shown(capsys, "--line", "8", *skip) == ["chats.jsonl, line 8", ' left out: "messages" is empty']
    assert shown(capsys, "--line", "9", *skip) == [
        "chats.jsonl, line 9",
        ' left out: the chat template leaves out names: "Bob" of message 1',
    ]
    left_out = printed(capsys, *skip)["left_out"]
    assert left_out == {'"messages" is empty': 1, "the chat template leaves out names": 1}
    assert run(capsys, "--line", "7", *skip)[2] == (
        "rankloom inspect: --line 7: no record in line 7 of chats.jsonl, its records are in lines 1 to 6\n"
    )


def test_several_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "more").mkdir()
    write_chats(folder / "more/chats.jsonl", CHATS[4:])
    write_chats(folder / "more/b.jsonl", CHATS[:2])
    both = ("--data.train", "[chats.jsonl, 'more/*.jsonl']")
    assert printed(capsys, "--sample", "6", *both)["name"] == "more/b.jsonl, line 1"
    assert printed(capsys, "--line", "b.jsonl:2", *both)["sample"] == 7
    assert printed(capsys, "--line", "more/chats.jsonl:1", *both)["sample"] == 8
    assert printed(capsys, "--line", "chats.jsonl:1", *both)["sample"] == 0
    assert run(capsys, "--line", "1", *both)[2] == (
        "rankloom inspect: --line 1: data.train has 3 files; write FILE:1, for example chats.jsonl:1\n"
    )
    assert run(capsys, "--line", "c.jsonl:1", *both)[2] == (
        "rankloom inspect: --line c.jsonl:1: data.train has no file c.jsonl; it has chats.jsonl, "
        "more/b.jsonl, more/chats.jsonl\n"
    )
    (folder / "less").mkdir()
    write_chats(folder / "less/b.jsonl", CHATS[:1])
    assert run(capsys, "--line", "b.jsonl:1", "--data.train", "['more/*.jsonl', less/b.jsonl]")[2] == (
        "rankloom inspect: --line b.jsonl:1: data.train has several files b.jsonl; it has more/b.jsonl, "
        "more/chats.jsonl, less/b.jsonl\n"
    )


def test_rows_of_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": "Is 9 a prime?", "response": "No."}, {"prompt": "Is 7?", "response": "Yes."}]
    parquet.write_table(pa.Table.from_pylist(rows), "chats.parquet")
    table = ("--data.train", "chats.parquet")
    view = printed(capsys, "--line", "0", *table)
    assert (view["name"], view["text"]) == (
        "chats.parquet, row 0",
        "<|user|>Is 9 a prime?<|end|><|assistant|>No.<|end|>",
    )
    assert run(capsys, "--line", "2", *table)[2] == (
        "rankloom inspect: --line 2: no record in row 2 of chats.parquet, its records are in rows 0 to 1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sample", "6"], "--sample 6: chats.jsonl has 6 records, 0 to 5"),
        (["--sample", "-1"], "--sample -1: chats.jsonl has 6 records, 0 to 5"),
        (["--step", "0"], "--step 0: the run has steps 1 to 2"),
        (["--step", "3"], "--step 3: the run has steps 1 to 2"),
        (
            ["--step", "8", "--train.max_steps", "7", "--train.epochs", "null"],
            "--step 8: the run has steps 1 to 7",
        ),
        (["--step", "2", "--train.epochs", "null"], "--step 2: the run has steps 1 to 1"),
        (["--step", "1", "--lane", "2"], "--lane 2: the layout has lanes 0 to 1"),
        (["--step", "1", "--lane", "-1"], "--lane -1: the layout has lanes 0 to 1"),
        (["--lane", "1"], "--lane 1 needs a step: --step K --lane 1"),
        (["--sample", "0", "--lane", "1"], "--lane 1 needs a step: --step K --lane 1"),
        (["--step", "1", "--sample", "0"], "--sample and --step show different things; give one of them"),
        (["--sample", "0", "--line", "1"], "--sample and --line show different things; give one of them"),
        (["--line", "one"], "--line one: write its number, or FILE:NUMBER"),
        *(
            (
                ["--data.train", "null", *options],
                'data.train is not set; name a JSON Lines file of chats, or "python-docs"',
            )
            for options in ([], ["--sample", "0"], ["--step", "1"])
        ),
        (
            ["--sample", "0", "--data.train", "none.jsonl"],
            'none.jsonl: no such file; data.train is a JSON Lines file of chats, or "python-docs" (relative '
            "paths start at the working directory)",
        ),
    ],
)  # fmt: skip
def test_refusals(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *arguments) == (2, "", f"rankloom inspect: {message}\n")


def test_colour_repeats_what_signs_say(folder: Path) -> None:
    view = Records(load("run.yaml")).sample(0)
    consoles = [
        Console(force_terminal=colours, color_system="truecolor" if colours else None, width=80)
        for colours in (True, False)
    ]
    texts = []
    for console in consoles:
        with console.capture() as captured:
            print_view(view, config="run.yaml", console=console)
        texts.append(captured.get())
    coloured, plain = texts
    assert "\x1b[38;2;0;0;0;48;2;0;158;115m4\x1b[0m" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


TEXT = st.text(st.sampled_from("ab \n\t\x1b東é🙂\u200b\u0301"), max_size=12)


@given(st.lists(st.tuples(TEXT, st.booleans()), max_size=20), st.integers(4, 24))
def test_lines_of_tokens(tokens: list[tuple[str, bool]], width: int) -> None:
    texts, kinds = [text for text, _ in tokens], [kind for _, kind in tokens]
    lines = list(token_lines(texts, kinds, width=width))
    whole = [""] * len(texts)
    for line in lines:
        assert line.first == line.pieces[0][0]
        assert len({kinds[token] for token, _ in line.pieces}) == 1
        assert sum(cell_len(piece) for _, piece in line.pieces) <= width
        for token, piece in line.pieces:
            whole[token] += piece
    assert whole == [visible(text) + BORDER for text in texts]
    for before, after in pairwise(lines):
        last, first = before.pieces[-1][0], after.first
        used = sum(cell_len(piece) for _, piece in before.pieces)
        room = used + cell_len(after.pieces[0][1]) <= width
        assert not room or last == first or kinds[last] != kinds[first] or "\n" in texts[last]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(chats(30), max_vocab_size=320)


@given(text=st.text(max_size=40))
def test_texts_of_tokens_are_the_decoded_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer.backend_tokenizer.encode(text).ids
    tokens = TokenTexts.of(tokenizer, ids)
    assert tokens.ids == ids
    assert "".join(tokens.texts) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
