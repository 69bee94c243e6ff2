"""Padding and speed of the ways to pack an epoch, on the docstrings of the Python library.

python benchmarks/packing.py [--length 512] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from rankloom.data import pack_epoch
from rankloom.data.packing import METHODS
from rankloom.data.prepare import prepare_data


def measure(lengths: np.ndarray, method: str, room: int, window: int) -> dict[str, object]:
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    started = time.perf_counter()
    rows = pack_epoch(lengths, order, max_seq_length=room, packing=method, window=window)
    took = time.perf_counter() - started
    return {
        "packing": method,
        "window": window if method == "first_fit_decreasing" else None,
        "rows": len(rows),
        "padding": 1 - int(lengths.sum()) / (len(rows) * room),
        "records_per_second": round(len(lengths) / took),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    room = given.length
    data = prepare_data("python-docs", max_seq_length=room, packing=True, seed=0, global_batch_size=8)
    lengths = data.dataset.lengths
    wished = [(method, 1024) for method in METHODS] + [("first_fit_decreasing", n) for n in (64, 256, 4096)]
    found = [measure(lengths, method, room, window) for method, window in wished]
    print(f"{len(lengths):,} records of {lengths.mean():.0f} tokens on average, rows of {room}")
    for row in found:
        name = f"{row['packing']} in {row['window']}" if row["window"] else str(row["packing"])
        print(
            f"{name:<28} {row['rows']:>7,} rows {row['padding']:>7.2%} padding "
            f"{row['records_per_second']:>10,} records/s"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
