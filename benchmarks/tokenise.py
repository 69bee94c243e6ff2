"""Building the cache of tokens against `tokenizers` alone, and against rendering and then tokenising.

    python benchmarks/tokenise.py [--json FILE] [--megabytes 50] [--memory-megabytes 400] [--rounds 3]

Data: the chats of python-docs as a file, and a file of chats with 2 to 8 turns made on the fly from the same
text. Templates: one with generation markers, and ChatML, which has none, so that spans are found by rendering
the beginnings of each chat. All in one process; the three are timed in turn, several rounds, and the fastest
of each is compared, by the clock and by the processor time of all threads:

- tokenizers: `encode_batch` of the rendered texts, which lie in memory, 1,000 at a time, and their ids;
- rendering: `apply_chat_template(tokenize=False)` of every chat, also from memory;
- cache: reading and checking the file, rendering, finding the trained spans, tokenising, writing and the
  checksums of what was written.

Memory: peak resident memory of a process that builds the cache of a larger file, and before it does."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast

from rankloom.data.template import turn_of
from rankloom.data.tokenized import Recipe, tokenized
from rankloom.data.tokenizer import train_tokenizer
from rankloom.records import PYTHON_DOCS, ChatRecord, Message, load_records

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 16384
BATCH = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--memory-megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--build", nargs=2, help=argparse.SUPPRESS
    )  # file, folder: the process that is measured
    options = parser.parse_args()
    if options.build:
        print(json.dumps(_build_measured(*map(Path, options.build))))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = _measure(Path(folder), options)
    _show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    docs = load_records(PYTHON_DOCS).records
    tokenizers = _tokenizers(docs)
    chats = folder / "chats.jsonl"
    _write_chats(chats, docs, options.megabytes)
    written = folder / "docs.jsonl"
    written.write_text("".join(_line(record.messages) for record in docs))
    rows = []
    for name, source in (("python-docs", str(written)), (f"chats, {options.megabytes} MB", str(chats))):
        records = load_records(source).records
        for template, tokenizer in tokenizers.items():
            rows.append(_times(name, source, template, tokenizer, records, folder / "cache", options.rounds))
        del records
    tokenizers["ChatML"].save_pretrained(str(folder / "tokenizer"))
    large = folder / "large.jsonl"
    _write_chats(large, docs, options.memory_megabytes)
    command = [sys.executable, __file__, "--build", str(large), str(folder)]
    memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"speed": rows, "memory": {"file_mb": options.memory_megabytes, **memory}}


def _tokenizers(docs: list[ChatRecord]) -> dict[str, PreTrainedTokenizerFast]:
    marked = train_tokenizer(docs, max_vocab_size=VOCAB_SIZE)
    plain = train_tokenizer(docs, max_vocab_size=VOCAB_SIZE - 2)
    plain.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})
    plain.chat_template = CHATML
    return {"markers": marked, "ChatML": plain}


def _write_chats(path: Path, docs: list[ChatRecord], megabytes: int) -> None:
    draw = random.Random(0)
    size = 0
    with path.open("w") as stream:
        while size < megabytes * 10**6:
            size += stream.write(
                _line([m for _ in range(draw.randint(1, 4)) for m in draw.choice(docs).messages])
            )


def _line(messages: Sequence[Message]) -> str:
    return json.dumps({"messages": [turn_of(m) for m in messages]}, ensure_ascii=False) + "\n"


def _times(
    name: str,
    source: str,
    template: str,
    tokenizer: PreTrainedTokenizerFast,
    records: list[ChatRecord],
    cache: Path,
    rounds: int,
) -> dict[str, Any]:
    turns = [[turn_of(message) for message in record.messages] for record in records]
    texts = [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in turns]
    backend = tokenizer.backend_tokenizer
    work: dict[str, Callable[[int], object]] = {
        "tokenizers": lambda _: [_encode(backend, texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)],
        "rendering": lambda _: [tokenizer.apply_chat_template(chat, tokenize=False) for chat in turns],
        "cache": lambda n: tokenized(source, Recipe(cache / f"{template} {n}", tokenizer, f"{n}", template)),
    }
    seconds: dict[str, list[tuple[float, float]]] = {what: [] for what in work}
    for number in range(rounds):
        for what, do in work.items():
            since = time.perf_counter(), time.process_time()
            do(number)
            seconds[what].append((time.perf_counter() - since[0], time.process_time() - since[1]))
    best = {f"{what}_s": round(min(wall for wall, _ in times), 3) for what, times in seconds.items()}
    cpu = {f"{what}_cpu_s": round(min(cpu for _, cpu in times), 3) for what, times in seconds.items()}
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    return {
        "data": name,
        "template": template,
        "records": len(records),
        "text_mb": round(megabytes, 1),
        **best,
        **cpu,
        "cache_mb_per_s": round(megabytes / best["cache_s"], 2),
        "of_tokenizers": round(best["tokenizers_s"] / best["cache_s"], 2),
        "of_both": round((best["tokenizers_s"] + best["rendering_s"]) / best["cache_s"], 2),
        "of_tokenizers_cpu": round(cpu["tokenizers_cpu_s"] / cpu["cache_cpu_s"], 2),
        "of_both_cpu": round((cpu["tokenizers_cpu_s"] + cpu["rendering_cpu_s"]) / cpu["cache_cpu_s"], 2),
    }


def _encode(backend: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


def _build_measured(file: Path, folder: Path) -> dict[str, float]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder / "tokenizer"))
    before = _peak_mb()
    since = time.perf_counter()
    found = tokenized(str(file), Recipe(folder / "memory", tokenizer, "memory", "ChatML"))
    seconds = time.perf_counter() - since
    return {
        "records": len(found.dataset),
        "tokens": found.dataset.num_tokens,
        "before_mb": before,
        "peak_mb": _peak_mb(),
        "seconds": round(seconds, 1),
    }


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


def _show(result: dict[str, Any]) -> None:
    table = Table()
    columns = ("data", "template", "text MB", "tokenizers s", "rendering s", "cache s", "MB/s")
    for column in (*columns, "x tokenizers (cpu)", "x both (cpu)"):
        table.add_column(column, justify="left" if column in ("data", "template") else "right")
    for row in result["speed"]:
        shown = ("data", "template", "text_mb", "tokenizers_s", "rendering_s", "cache_s", "cache_mb_per_s")
        ratios = (f"{row[key]} ({row[f'{key}_cpu']})" for key in ("of_tokenizers", "of_both"))
        table.add_row(*(str(row[key]) for key in shown), *ratios)
    console = Console(width=130)
    console.print(table)
    memory = result["memory"]
    console.print(
        f"memory: {memory['file_mb']} MB of chats, {memory['tokens']:,} tokens: peak {memory['peak_mb']} MB, "
        f"{memory['before_mb']} MB before the file is opened ({memory['seconds']} s)"
    )


if __name__ == "__main__":
    main()
