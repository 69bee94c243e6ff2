"""Layout invariance under everything else that a config can ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.parity.compare import Differences
from tests.parity.layouts import Layout, layout
from tests.parity.problems import Problem, from_folder, from_seed

Compared = Callable[[Problem, Layout], Differences]


def seeded(name: str, *, num_chats: int = 120, **sections: dict[str, Any]) -> Problem:
    return from_seed(name, sections=sections, num_chats=num_chats)


CHECKPOINTING = seeded("llama_seeded", train={"gradient_checkpointing": True})
CHECKPOINTING_TIED = from_folder(
    "qwen3_folder", "qwen3", sections={"train": {"gradient_checkpointing": True}}
)
NO_PACKING = seeded("no_packing", data={"packing": False})
NO_CLIPPING = seeded("no_clipping", optimizer={"clip_grad": 0.0})
# 30 chats fill 11 rows: the second batch of every epoch has 5 empty rows, or is dropped.
FILLED = seeded("filled", num_chats=30, train={"max_steps": None, "epochs": 4})
DROPPED = seeded("dropped", num_chats=30, train={"max_steps": None, "epochs": 5}, data={"last_batch": "drop"})
THREE_MICROBATCHES = seeded("three_microbatches", train={"global_batch_size": 12})
CUT_RECORDS = seeded("cut_records", data={"max_seq_length": 32, "overlong": "truncate"})
LEFT_OUT_RECORDS = seeded("left_out_records", data={"max_seq_length": 32, "overlong": "drop"})
SCHEDULED = seeded(
    "scheduled",
    optimizer={"betas": [0.8, 0.99], "weight_decay": 0.3, "no_decay": ["*norm*", "*embed_tokens*"]},
    schedule={"decay": "linear", "warmup_samples": 20, "decay_samples": 60, "min_lr": 1e-4},
)
BALANCED = seeded("llama_seeded", data={"balance": "work", "num_workers": 2})
PACKED_TIGHTLY = seeded("packed_tightly", data={"packing": "first_fit_decreasing", "packing_window": 40})
RAMPED = seeded("ramped", train={"global_batch_size": 16, "rampup_batch_size": [4, 4, 40]})
OVER_TOKENS = seeded(
    "over_tokens",
    schedule={"decay": "wsd", "warmup_samples": 0, "warmup_tokens": 900, "wsd_decay_tokens": 2000},
)
CONSTANT = seeded("constant", schedule={"decay": "constant", "warmup_samples": 0})


@pytest.mark.parametrize(
    ("problem", "where"),
    [
        pytest.param(CHECKPOINTING, layout("1", rows=2), marks=pytest.mark.long),
        (CHECKPOINTING, layout("4 TP2 W4 Q4", rows=4)),
        pytest.param(CHECKPOINTING, layout("8 W4 Q2 CP2", rows=2), marks=pytest.mark.long),
        (CHECKPOINTING_TIED, layout("4 W2 CP2")),
        (NO_PACKING, layout("4 W4 Q2", rows=2)),
        pytest.param(NO_CLIPPING, layout("4 TP2 W4", rows=2), marks=pytest.mark.long),
        pytest.param(NO_CLIPPING, layout("4 W2 CP2", rows=2), marks=pytest.mark.long),
        pytest.param(FILLED, layout("8 W8"), marks=pytest.mark.long),
        (FILLED, layout("4 W4 Q2", rows=2)),
        pytest.param(DROPPED, layout("4 W2 CP2", rows=2), marks=pytest.mark.long),
        (THREE_MICROBATCHES, layout("4 W4")),
        (CUT_RECORDS, layout("4 W2 Q2 CP2", rows=2)),
        pytest.param(LEFT_OUT_RECORDS, layout("4 W4 Q2", rows=2), marks=pytest.mark.long),
        (SCHEDULED, layout("4 W2 CP2", rows=2)),
        pytest.param(SCHEDULED, layout("4 TP2 W4", rows=4), marks=pytest.mark.long),
        pytest.param(CONSTANT, layout("2 W2", rows=2), marks=pytest.mark.long),
        (BALANCED, layout("4 W4")),
        pytest.param(BALANCED, layout("8 W4 Q2 CP2", rows=2), marks=pytest.mark.long),
        pytest.param(PACKED_TIGHTLY, layout("4 W4 Q2", rows=2), marks=pytest.mark.long),
        (RAMPED, layout("4 W4")),
        pytest.param(RAMPED, layout("4 TP2 W4 Q4", rows=4), marks=pytest.mark.long),
        (OVER_TOKENS, layout("4 W2 Q2 CP2", rows=2)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_setting(compared: Compared, problem: Problem, where: Layout) -> None:
    compared(problem, where).refuse()


# Several files, and weights in bfloat16 that are trained in float32; test_layouts.py has single files.
SEVERAL_FILES = from_folder("several_files", "qwen2", saved={"max_shard_size": "40KB"})
SEVERAL_FILES_TIED = from_folder("several_files_tied", "qwen3", saved={"max_shard_size": "40KB"})
HALF = from_folder("saved_in_bfloat16", "mistral", saved_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("problem", "where"),
    [
        (SEVERAL_FILES, layout("4 TP2 W4 Q4", rows=4)),
        pytest.param(SEVERAL_FILES_TIED, layout("8 W4 Q2 CP2", rows=2), marks=pytest.mark.long),
        pytest.param(HALF, layout("4 TP2 W4", rows=4), marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_start_from_a_folder(
    compared: Compared, references: Any, tmp_path: Path, problem: Problem, where: Layout
) -> None:
    start = references.folder(problem) / "start"
    assert (len(list(start.glob("*.safetensors"))) > 1) == bool(problem.saved)
    compared(problem, where).refuse()
    _refuse_another_tokenizer(tmp_path / "model", start)
    _refuse_what_transformers_cannot_load(tmp_path / "model")


def _refuse_another_tokenizer(exported: Path, start: Path) -> None:
    got, want = (AutoTokenizer.from_pretrained(folder) for folder in (exported, start))
    assert got.get_vocab() == want.get_vocab()
    assert got.chat_template == want.chat_template
    assert got.special_tokens_map == want.special_tokens_map


def _refuse_what_transformers_cannot_load(exported: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not any(info.values()), info
    assert model.dtype is torch.float32


# Rows of 36, 60, 24, 12 and 271 over GTP_remat 8 or 4 and TP 2: padding nearly everywhere; two of 8 ranks
# hold no key row at all.
ODD_SIZES = {"hidden_size": 36, "intermediate_size": 60, "head_dim": 6, "vocab_size": 271}
ODD = from_folder("odd_sizes", "llama_biases_tied", model=ODD_SIZES)
ODD_UNTIED = from_seed("odd_sizes_untied", "qwen3", model={**ODD_SIZES, "tie_word_embeddings": False})


@pytest.mark.parametrize(
    ("problem", "where"),
    [
        (ODD, layout("8 TP2 W8", rows=2)),
        (ODD_UNTIED, layout("8 W8")),
        pytest.param(ODD, layout("8 W8"), marks=pytest.mark.long),
        pytest.param(ODD_UNTIED, layout("8 TP2 W8", rows=2), marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_sizes_that_do_not_divide(compared: Compared, problem: Problem, where: Layout) -> None:
    compared(problem, where).refuse()
