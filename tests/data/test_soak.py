"""A long training at the level of its data: saved, killed and resumed at random in other layouts.

Every sample is trained on exactly once an epoch, as the logged numbers of what reached the lanes say."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest

from rankloom.data import Counts, LaneLoader, LaneReader
from rankloom.data.state import DataState, LaneState
from rankloom.errors import RunError
from tests.data.chats import dataset, stream

NOTHING = Counts(0, 0, 0, 0)
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 8)]  # lanes, rows of a microbatch
NUM_RECORDS = 203


class Run:
    """One attempt: loaders of all lanes, from a saved state on."""

    def __init__(self, saved: str, log: dict[int, list[tuple[int, int]]], rng: np.random.Generator) -> None:
        lengths = np.random.default_rng(8).integers(2, 17, NUM_RECORDS).tolist()
        packing: dict[str, object] = {"packing": "first_fit_decreasing", "packing_window": 32}
        rows = stream(dataset(lengths), max_seq_length=16, global_batch_size=8, **packing)
        self.lanes, micro = LAYOUTS[rng.integers(len(LAYOUTS))]
        self.consumed = NOTHING
        if saved:
            state = DataState.from_json(json.loads(saved))
            rows, self.consumed = state.restore(rows, num_lanes=self.lanes).stream, state.consumed
        self.rows, self.step, self.log, self.rng = rows, rows.origin.step, log, rng
        balance = "work" if rng.random() < 0.5 else "none"
        self.loaders = [
            LaneLoader(
                rows, rows.dataset, lane=k, num_lanes=self.lanes, micro_batch_size=micro, balance=balance
            )
            for k in range(self.lanes)
        ]
        workers = int(rng.random() < 0.1) * 2
        self.readers = [LaneReader(k, first=self.step, num_workers=workers) for k in self.loaders]

    def train(self) -> None:
        """One step: what every lane was given goes to the log, in place of what a lost attempt logged."""
        given: list[tuple[int, int]] = []
        for reader in self.readers:
            for microbatch in reader.take(self.step)[0]:
                for row in microbatch.rows:
                    given += [(row.epoch, record) for record in row.records]
                    firsts = [100 * record for record in row.records]  # the tokens say so too
                    place = microbatch.rows.index(row)
                    starts = (microbatch.position_ids[place] == 0) & (
                        microbatch.document_ids[place] < len(row.records)
                    )
                    if row.records:
                        assert microbatch.input_ids[place][starts].tolist() == firsts
        self.log[self.step] = given
        counts = self.rows.counts(self.step)
        self.consumed = Counts(*(a + b for a, b in zip(self.consumed, counts, strict=True)))
        self.step += 1

    def save(self) -> str:
        dealer = self.loaders[0].dealer
        lanes = [LaneState.of(self.rows, dealer, lane=k, step=self.step) for k in range(self.lanes)]
        state = DataState.of(self.rows, step=self.step, consumed=self.consumed, lanes=lanes)
        return json.dumps(state.to_json())

    def kill(self) -> None:
        """The loader processes, where there are some; the attempt notices, and ends."""
        pids = [pid for reader in self.readers for pid in reader.pids]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if pids:
            with pytest.raises(RunError, match="was ended by SIGKILL"):
                self.train_on(12)

    def train_on(self, steps: int) -> None:
        for _ in range(steps):
            self.train()

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


def soak(num_steps: int, seed: int) -> tuple[dict[int, list[tuple[int, int]]], Counter[str]]:
    rng = np.random.default_rng(seed)
    log: dict[int, list[tuple[int, int]]] = {}
    saved, met = "", Counter[str]()
    while True:
        run = Run(saved, log, rng)
        met["attempts"] += 1
        try:
            while run.step < num_steps:
                run.train()
                chance = rng.random()
                if chance < 0.15:
                    saved = run.save()
                    met["saves"] += 1
                elif chance < 0.2:
                    met["kills"] += 1
                    run.kill()
                    break
            else:
                return log, met
        finally:
            run.close()


def check(log: dict[int, list[tuple[int, int]]], num_steps: int) -> int:
    """Number of whole epochs."""
    assert sorted(step for step in log if step < num_steps) == list(range(num_steps))
    trained = Counter(sample for step in range(num_steps) for sample in log[step])
    assert set(trained.values()) == {1}
    last = max(epoch for epoch, _ in trained)
    for epoch in range(last):
        assert sorted(record for e, record in trained if e == epoch) == list(range(NUM_RECORDS))
    return last


def test_a_short_soak() -> None:
    log, met = soak(150, seed=2)
    assert check(log, 150) >= 8
    assert met["kills"] >= 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_a_soak_of_two_thousand_steps(seed: int) -> None:
    log, met = soak(2000, seed=seed)
    assert check(log, 2000) >= 100
    assert met["kills"] >= 50
    assert met["saves"] >= 200
