"""The loss on validation data: in any layout what plain transformers says, each sample counted once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rankloom.comm import Communicator
from rankloom.config import refuse_for_training, resolve
from rankloom.data import Dealer
from rankloom.data.evaluation import EvaluationRows, evaluation_stream
from rankloom.data.prepare import RunData, prepare
from rankloom.errors import RunError, UserError
from rankloom.plan import ModelPlan, ModelSpec, bytes_by_group, evaluation_collectives
from rankloom.train.assemble import build_model, model_plan, step_shape
from rankloom.train.evaluator import Evaluator, evaluation_rows, is_due
from rankloom.train.loop import run_connected
from rankloom.train.worker import Worker
from tests.data.chats import dataset
from tests.runtime.runs import TINY, Recorder, settings, write_chats

TP, W, Q, CP = (
    "tensor_model_parallel_size",
    "tensor_parallel_num_weight_shards",
    "tensor_parallel_num_sequence_shards",
    "context_parallel_size",
)
LAYOUTS: list[tuple[int, dict[str, Any], int, int | None]] = [  # ranks, layout, rows a microbatch, eval batch
    (1, {}, 1, None),
    (1, {}, 2, 2),
    (4, {W: 4}, 1, 4),
    (4, {W: 4}, 2, 16),
    (4, {W: 4, Q: 4}, 2, 2),
    (4, {W: 2, Q: 2, CP: 2}, 1, 5),
    (4, {TP: 2, W: 4}, 1, None),
    (4, {TP: 2, W: 4, Q: 4}, 4, 4),
    (4, {TP: 2, "sequence_parallel": False}, 2, 12),
    (4, {}, 1, 64),
    (8, {TP: 2, W: 4, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}, 2, 4),
]


SWAPPED = {"train": "validation", "validation": "chats"}


def config(folder: Path, world: int, parallel: dict[str, Any], **sections: Any) -> dict[str, Any]:
    write_chats(folder / "chats.jsonl")
    write_chats(folder / "validation.jsonl", count=23, seed=9)
    data = {"validation": str(folder / "validation.jsonl"), **sections.pop("data", {})}
    train = {"max_steps": 3, "eval_every": 2, **sections.pop("train", {})}
    return settings(folder, parallel=parallel, world_size=world, data=data, train=train, **sections)


def run(rank: int, world_size: int, config: Mapping[str, Any]) -> tuple[list[Any], list[str], Any]:
    resolved = resolve(config)
    refuse_for_training(resolved)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    recorder = Recorder()
    summary = run_connected(resolved, comm, reporter=recorder)
    comm.close()
    return recorder.rows, recorder.notes, summary


def plain_loss(model_folder: Path, chats: Path) -> tuple[float, int]:
    """Every chat alone through an exported model."""
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    total, count = 0.0, 0
    for line in chats.read_text().splitlines():
        encoded = tokenizer.apply_chat_template(
            json.loads(line)["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor(encoded["input_ids"])
        targets = ids[1:].masked_fill(~torch.tensor(encoded["assistant_masks"][1:], dtype=torch.bool), -100)
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits.double(), targets, ignore_index=-100, reduction="sum")
        total, count = total + loss.item(), count + int((targets != -100).sum())
    return total / count, count


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(("world", "parallel", "micro", "eval_batch"), LAYOUTS, ids=str)
def test_it_is_what_plain_transformers_says(
    ranks: Any,
    tmp_path: Path,
    expected: dict[str, Any],
    world: int,
    parallel: dict[str, Any],
    micro: int,
    eval_batch: int | None,
) -> None:
    train = {"micro_batch_size": micro, "eval_batch_size": eval_batch}
    results = ranks(world, run, config(tmp_path, world, parallel, train=train), timeout_s=120)
    evaluated = [[(row["eval_loss"], row["eval_tokens"]) for row in rows] for rows, _, _ in results]
    assert all(rank == evaluated[0] for rank in evaluated)
    assert [loss is None for loss, _ in evaluated[0]] == [True, False, False]  # step 2, and the end
    want, tokens = plain_loss(tmp_path / "run/model", tmp_path / "validation.jsonl")
    assert evaluated[0][2][1] == tokens
    assert evaluated[0][2][0] == pytest.approx(want, rel=1e-5)
    assert evaluated[0][1] == pytest.approx(expected.setdefault("step 2", evaluated[0][1]), rel=1e-5)
    summary = results[0][2]
    assert (summary["eval_loss"], summary["eval_tokens"]) == evaluated[0][2]
    told = [note for note in results[0][1] if note.startswith("evaluation: ")]
    assert told == ["evaluation: 23 records in 10 rows, every 2 steps and at the end"]


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"packing": "none"}},
        {"data": {"packing": "first_fit_decreasing", "balance": "work", "num_workers": 2}},
        {"train": {"gradient_checkpointing": True}},
        {"model": {"config": {**TINY, "tie_word_embeddings": True, "num_hidden_layers": 1}}},
    ],
    ids=["no_packing", "other_packing_and_dealing", "checkpointing", "tied"],
)
def test_whatever_else_is_set(ranks: Any, tmp_path: Path, sections: dict[str, Any]) -> None:
    results = ranks(4, run, config(tmp_path, 4, {W: 4, Q: 2}, **sections), timeout_s=120)
    want, tokens = plain_loss(tmp_path / "run/model", tmp_path / "validation.jsonl")
    for rows, _, _ in results:
        assert rows[-1]["eval_tokens"] == tokens
        assert rows[-1]["eval_loss"] == pytest.approx(want, rel=1e-5)


def test_more_validation_records_than_are_trained_on(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 4, {W: 4}, data={"balance": "work"})
    given["data"] |= {key: str(tmp_path / f"{file}.jsonl") for key, file in SWAPPED.items()}
    rows, notes, _ = ranks(4, run, given, timeout_s=120)[0]
    assert any(note.startswith("evaluation: 120 records in ") for note in notes)
    want, tokens = plain_loss(tmp_path / "run/model", tmp_path / "chats.jsonl")
    assert rows[-1]["eval_tokens"] == tokens
    assert rows[-1]["eval_loss"] == pytest.approx(want, rel=1e-5)


def test_it_changes_nothing_of_the_training(ranks: Any, tmp_path: Path) -> None:
    keys = ("loss", "grad_norm", "consumed_tokens", "comm_bytes")
    found = []
    for every in (1, 0):
        given = config(tmp_path, 4, {TP: 2, W: 4}, train={"eval_every": every})
        found.append([[row[key] for key in keys] for row in ranks(4, run, given, timeout_s=120)[0][0]])
    assert found[0] == found[1]


def test_without_eval_every_the_end_alone_is_evaluated(ranks: Any, tmp_path: Path) -> None:
    rows, notes, _ = ranks(2, run, config(tmp_path, 2, {W: 2}, train={"eval_every": 0}))[0]
    assert [row["eval_loss"] is None for row in rows] == [True, True, False]
    assert "evaluation: 23 records in 10 rows, at the end" in notes


def test_without_validation_data_nothing_is_evaluated(ranks: Any, tmp_path: Path) -> None:
    given = config(tmp_path, 2, {W: 2}, train={"eval_every": 0}, data={"validation": None})
    rows, _, summary = ranks(2, run, given)[0]
    assert [row["eval_loss"] for row in rows] == [None] * 3
    assert summary["eval_loss"] is None


def test_a_share_of_the_training_records(ranks: Any, tmp_path: Path) -> None:
    split = {"validation": None, "validation_split": 0.2}
    found = [
        ranks(world, run, config(tmp_path, world, parallel, data=split), timeout_s=90)[0]
        for world, parallel in ((1, {}), (4, {W: 4}))
    ]
    assert "evaluation: 24 records in " in " ".join(found[0][1])
    assert found[0][0][-1]["eval_tokens"] == found[1][0][-1]["eval_tokens"]
    assert found[0][0][-1]["eval_loss"] == pytest.approx(found[1][0][-1]["eval_loss"], rel=1e-5)


def sent(rank: int, world_size: int, config: Mapping[str, Any]) -> list[dict[str, int]]:
    """The bytes of two evaluations, and a refusal when the number of tokens is another."""
    resolved = resolve(config)
    comm = Communicator(resolved.layout, rank, device=torch.device("cpu"), timeout_s=60)
    data = prepare(resolved)
    plan = model_plan(resolved, vocab_size=data.vocab_size)
    model = build_model(resolved, plan, comm, data)
    worker = Worker(resolved, comm, data, model=model, optimizer=None, activity=comm.activity)  # type: ignore[arg-type]
    rows = evaluation_rows(resolved, data, lane=worker.batches.lane)
    assert rows is not None
    evaluator = Evaluator(rows, comm, delivery=worker.delivery, model=model)
    found = []
    for _ in range(2):
        before = comm.bytes_sent()
        evaluator.evaluate("of a test")
        found.append({name: now - before[name] for name, now in comm.bytes_sent().items()})
    planned = evaluation_collectives(plan, step_shape(resolved, num_microbatches=rows.num_microbatches()))
    assert found == [bytes_by_group(planned, plan, rank)] * 2
    rows.stream.dataset.valid[0] += 1
    with pytest.raises(
        RunError, match=r"evaluation of a test counted \d+ trained tokens, the validation data"
    ):
        evaluator.evaluate("of a test")
    comm.close()
    return found


@pytest.mark.parametrize(("world", "parallel", "micro", "eval_batch"), LAYOUTS, ids=str)
def test_sent_bytes_equal_the_plan(
    ranks: Any, tmp_path: Path, world: int, parallel: dict[str, Any], micro: int, eval_batch: int | None
) -> None:
    model = {"config": {**TINY, "tie_word_embeddings": micro == 1}}
    train = {"micro_batch_size": micro, "eval_batch_size": eval_batch}
    found = ranks(world, sent, config(tmp_path, world, parallel, train=train, model=model), timeout_s=90)
    assert any(sum(told[0].values()) for told in found) == (world > 1)


def test_every_row_once_and_no_round_of_fillers_alone() -> None:
    data = dataset([3] * 11)
    rows = evaluation_stream(data, max_seq_length=8, packing=False, packing_window=1024, seed=5, batch_size=8)
    lanes = [
        EvaluationRows(rows, dealer=Dealer(2, 1, data.lengths), lane=lane, pad_token_id=0) for lane in (0, 1)
    ]
    assert [lane.num_batches for lane in lanes] == [2, 2]
    assert [[len(lane.rows(batch)) for batch in (0, 1)] for lane in lanes] == [[4, 2], [4, 2]]
    assert (lanes[0].num_microbatches(), lanes[0].num_rows, lanes[0].num_valid) == (6, 11, 22)
    seen = [r for lane in lanes for b in (0, 1) for rows in lane.rows(b) for row in rows for r in row.records]
    assert sorted(seen) == list(range(11))


def test_when_it_is_due() -> None:
    assert [step for step in range(1, 11) if is_due(step, every=4, max_steps=10)] == [4, 8, 10]
    assert [step for step in range(1, 11) if is_due(step, every=0, max_steps=10)] == [10]


def test_there_must_be_something_to_evaluate(tmp_path: Path) -> None:
    given = config(tmp_path, 1, {}, data={"validation": None})
    with pytest.raises(UserError) as caught:
        refuse_for_training(resolve(given, origin="run.yaml"))
    assert str(caught.value) == (
        "train.eval_every 2: there is no validation data: set data.validation, or data.validation_split to a "
        "share of data.train (train section of run.yaml)"
    )


@pytest.mark.parametrize("key", ["train.eval_context_parallel_size", "parallel.eval_context_parallel_size"])
def test_another_layout_for_evaluation_cannot_be_asked_for(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match=f"{key} is not a setting"):
        resolve(config(tmp_path, 4, {}), cli={key: 2})


def test_the_plan_has_no_gradients(tmp_path: Path) -> None:
    resolved = resolve(config(tmp_path, 8, {TP: 2, W: 4, CP: 2}))
    plan = ModelPlan.build(ModelSpec.from_config(TINY), resolved.layout)
    records = evaluation_collectives(plan, step_shape(resolved))
    assert {r.what.split(" ")[0] for r in records} == {"deliver", "gather", "sum", "loss", "evaluation"}
    assert not any("gradient" in r.what or r.group == "replica" for r in records)


def test_balance_is_that_of_the_validation_records(tmp_path: Path) -> None:
    """Also where there are more of them than training records, and they are of other lengths."""
    lengths = [7, 1, 1, 6, 2, 3, 5, 4, 2, 2, 3, 3]
    resolved = resolve(
        settings(tmp_path, parallel={}, world_size=2, data={"balance": "work", "packing": False})
    )
    data = RunData(
        tokenizer=None,  # type: ignore[arg-type]
        vocab_size=16,
        pad_token_id=0,
        facts=(),
        fingerprint="0",
        validation=dataset(lengths),
    )
    rows = [evaluation_rows(resolved, data, lane=lane) for lane in (0, 1)]
    work = [
        [
            sum(lengths[r] ** 2 for rows in lane.rows(batch0) for row in rows for r in row.records)
            for lane in rows
            if lane is not None
        ]
        for batch0 in (0, 1)
    ]
    assert work == [[63, 65], [26, 13]]
