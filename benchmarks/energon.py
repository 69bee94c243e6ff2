"""Rows from an Energon data set: how fast, how full, and how long it takes to go on from a saved state.

    python benchmarks/energon.py [--json FILE] [--virtual-lanes 64] [--window 128] [--copies 4] [--workers 2]

Data: the chats of python-docs, some copies of them, as a JSON Lines file that Energon prepares. One process
owns all virtual lanes. A state is saved after a half and after nine tenths of an epoch, and a run goes on
from it in two ways: from the places that Energon can begin from, as training does, and by making all rows of
the epoch again. Last, the same rows are made in processes."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron.energon import CrudeJsonlDatasetFactory
from megatron.energon.epathlib import EPath
from rich.console import Console
from rich.table import Table

from rankloom.data.energon.lanes import VirtualLanes
from rankloom.data.energon.remote import LaneRecipe, RemoteVirtualLanes
from rankloom.data.energon.task import RowSettings
from rankloom.data.tokenizer import train_tokenizer
from rankloom.records import PYTHON_DOCS, load_records
from rankloom.records.energon import energon_data

LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--virtual-lanes", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = _measure(Path(folder), options)
    table = Table("measured", "value")
    for name, value in result.items():
        table.add_row(name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    records = load_records(PYTHON_DOCS).records
    lines = [
        json.dumps({"messages": [{"role": m.role, "content": m.content} for m in record.messages]}) + "\n"
        for record in records
    ]
    file = folder / "docs.jsonl"
    file.write_text("".join(lines) * options.copies)
    CrudeJsonlDatasetFactory.prepare_dataset(EPath(file))
    recipe = LaneRecipe(
        energon_data(str(file)),
        num_virtual_lanes=options.virtual_lanes,
        lane=0,
        num_lanes=1,
        settings=RowSettings(max_seq_length=LENGTH, packing_window=options.window),
        seed=0,
        tokenizer=train_tokenizer(records, max_vocab_size=4096),
        name="the tokenizer",
        train_on="all_turns",
    )
    opened = recipe.open

    number = options.virtual_lanes
    lanes = opened()
    first_s, _ = _timed(lambda: lanes.rows(0, number))
    epoch_s, (rows, tokens) = _timed(lambda: _epoch(lanes, number))
    result = {
        "samples": len(lines) * options.copies,
        "virtual lanes": number,
        "first row of each, s": first_s,
        "rows of an epoch": rows,
        "rows a second, after the first": (rows - number) / epoch_s,
        "tokens a second, after the first": (tokens - tokens * number / rows) / epoch_s,
        "padding": 1 - tokens / (rows * LENGTH),
    }
    for share in (0.5, 0.9):
        result |= _resumed(opened, int(rows * share) // number * number, share)
    return result | _in_processes(recipe, rows // number * number, options.workers)


def _in_processes(recipe: LaneRecipe, rows: int, num_workers: int) -> dict[str, Any]:
    """Rows of about an epoch, ``num_virtual_lanes`` asked for at a time."""
    lanes = RemoteVirtualLanes(recipe, num_workers)
    number = recipe.num_virtual_lanes
    first_s, _ = _timed(lambda: lanes.rows(0, number))
    rest_s, _ = _timed(lambda: [lanes.rows(first, number) for first in range(number, rows, number)])
    lanes.close()
    return {
        f"first row of each, {num_workers} processes, s": first_s,
        f"rows a second, after the first, {num_workers} processes": (rows - number) / rest_s,
    }


def _epoch(lanes: VirtualLanes, number: int) -> tuple[int, int]:
    """Rows and tokens until about the end of an epoch, those of the first round counted as the others."""
    made, tokens = number, 0
    while lanes.epochs < number:
        tokens += sum(len(chat.ids) for row in lanes.rows(made, number) for chat in row.chats)
        made += number
    return made, round(tokens * made / (made - number))


def _resumed(opened: Callable[[], VirtualLanes], rows: int, share: float) -> dict[str, Any]:
    lanes = opened()
    lanes.rows(0, rows)
    save_s, states = _timed(lambda: lanes.state(rows))
    after = _numbers(lanes, rows)
    found: dict[str, Any] = {
        f"at {share} of an epoch: state, bytes": len(json.dumps(states)),
        "saving it, s": save_s,
    }
    again = {number: _from_the_beginning(state) for number, state in states.items()}
    for name, content in (("from Energon's state", states), ("all rows made again", again)):
        other = opened()
        seconds, numbers = _timed(lambda other=other, content=content: _going_on(other, rows, content))
        assert numbers == after, name
        found[f"at {share}, going on, {name}, s"] = seconds
    return {f"{key} ({share})" if key == "saving it, s" else key: value for key, value in found.items()}


def _going_on(lanes: VirtualLanes, rows: int, states: Mapping[int, Any]) -> list[Any]:
    lanes.restore(rows, states)
    return _numbers(lanes, rows)


def _numbers(lanes: VirtualLanes, rows: int) -> list[Any]:
    """Samples of the next row of each virtual lane."""
    made = lanes.rows(rows, lanes.num_virtual_lanes)
    return [[chat.number for chat in row.chats] for row in made]


def _from_the_beginning(state: Mapping[str, Any]) -> dict[str, Any]:
    row = state["row"] + state["made_again"]
    return {**state, "row": 0, "made_again": row, "passed": 0, "energon": None}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    since = time.perf_counter()
    found = call()
    return time.perf_counter() - since, found


if __name__ == "__main__":
    main()
