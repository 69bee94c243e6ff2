"""What model folders make of the docstrings that a config holds out: their loss, and a few answers.

python examples/smollm2/before_after.py CONFIG runs/smollm2/base runs/smollm2/trained/model

rankloom says which docstrings are held out, and which of their tokens count. The rest is plain transformers
in one process: the loss is taken one docstring at a time, and answers are the likeliest, token by token.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rankloom.config import load
from rankloom.data.prepare import prepare
from rankloom.errors import UserError
from rankloom.records import ChatRecord, python_docs

UNTRAINED = -100

Document = tuple[Tensor, Tensor]  # ids [T]; labels [T], UNTRAINED where not trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="a config that trains on python-docs with data.validation_split")
    parser.add_argument("folders", nargs="+", help="model folders")
    parser.add_argument("--answers", type=int, default=3, help="how many questions to ask")
    arguments = parser.parse_args()
    disable_progress_bar()
    try:
        documents, records = held_out(arguments.config)
    except UserError as error:
        sys.exit(f"error: {error}")
    asked = spread(records, arguments.answers)
    print(
        f"{len(documents)} docstrings held out, {sum(num_trained(d) for d in documents):,} tokens of answers"
    )
    answers = []
    for folder in arguments.folders:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        print(f"loss {mean_loss(model, documents):.4f}  {folder}")
        answers.append([answer(model, folder, record) for record in asked])
    for record, said in zip(asked, zip(*answers, strict=True), strict=True):
        show("question", record.messages[0].content)
        show("docstring", record.messages[1].content)
        for folder, text in zip(arguments.folders, said, strict=True):
            show(folder, text)


def held_out(config: str) -> tuple[list[Document], list[ChatRecord]]:
    """The validation data of a config, as tokens and as records."""
    resolved = load(config)
    found = prepare(resolved).validation
    if resolved.data.train != "python-docs" or found is None or resolved.data.validation is not None:
        raise UserError(f"{config} does not train on python-docs with data.validation_split")
    documents = []
    for position in range(len(found)):
        ids = torch.tensor(found.ids(position).tolist())
        documents.append((ids, torch.where(torch.tensor(found.trained(position).tolist()), ids, UNTRAINED)))
    records = python_docs()
    return documents, [records[number] for number in found.numbers]


def spread(records: list[ChatRecord], count: int) -> list[ChatRecord]:
    """Some of the records, as far from each other as they can be; the same ones every time."""
    count = min(count, len(records))
    return [records[(2 * i + 1) * len(records) // (2 * count)] for i in range(count)]


def num_trained(document: Document) -> int:
    """The first token is predicted by nothing."""
    return int((document[1][1:] != UNTRAINED).sum())


def mean_loss(model: Any, documents: list[Document]) -> float:
    """Over the trained tokens of all documents together."""
    total = 0.0
    for ids, labels in documents:
        with torch.inference_mode():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        total += cross_entropy(logits, labels[1:], ignore_index=UNTRAINED, reduction="sum").item()
    return total / sum(num_trained(document) for document in documents)


def answer(model: Any, folder: str, record: ChatRecord) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = {"role": "user", "content": record.messages[0].content}
    prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**prompt, do_sample=False, max_new_tokens=64)
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def show(name: str, text: str) -> None:
    """A first line behind the name, and the others below it."""
    first, *others = text.splitlines() or [""]
    lead = "\n" if name == "question" else ""
    print(f"{lead}{name}: {first}")
    for line in others:
        print(f"    {line}".rstrip())


if __name__ == "__main__":
    main()
