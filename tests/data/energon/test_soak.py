"""A long training on an Energon data set at the level of its data: saved, dropped and resumed at random, with
other numbers of lanes. Every sample is trained on exactly once in every epoch, as the log of what reached the
lanes says."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from rankloom.config import resolve
from rankloom.data.energon import virtual
from rankloom.data.energon.loading import EnergonLoader
from rankloom.data.energon.prepare import EnergonRunData, prepare_energon
from rankloom.data.energon.state import EnergonState
from rankloom.data.rows import Counts
from rankloom.records.energon import EnergonData
from tests.data.energon.datasets import NUM_SAMPLES

ROWS, VIRTUAL_LANES = 8, 8
LANES = (1, 2, 4, 8)
Log = dict[int, list[tuple[int, int, int]]]  # of each step: virtual lane, epoch and sample


def run_data(folder: Path, source: EnergonData, packing: str) -> EnergonRunData:
    config = {
        "model": {"config": {"model_type": "llama", "vocab_size": 300}},
        "data": {
            "source": "energon",
            "path": source.path,
            "num_virtual_lanes": VIRTUAL_LANES,
            "packing": packing,
            "packing_window": 4,
            "max_seq_length": 64,
            "cache_dir": str(folder / "cache"),
        },
        "train": {"global_batch_size": ROWS, "max_steps": 1},
        "cluster": {"world_size": 1},
    }
    return prepare_energon(resolve(config))


class Attempt:
    """Loaders of all lanes, from a saved state on, reading ahead."""

    def __init__(self, data: EnergonRunData, saved: str, log: Log, rng: np.random.Generator) -> None:
        self._data, self._log = data, log
        self._num_lanes = int(rng.choice(LANES))
        self._loaders = [
            EnergonLoader(data, lane=lane, num_lanes=self._num_lanes, micro_batch_size=1)
            for lane in range(self._num_lanes)
        ]
        self.step = 0
        if saved:
            state = EnergonState.from_json(json.loads(saved))
            state.check(data.order)
            self.step = state.step
            for loader in self._loaders:
                loader.restore(state)
        for loader in self._loaders:
            if rng.random() < 0.5:  # as `verify` does before a run reads ahead
                loader.look(self.step)
            loader.read_ahead(first=self.step, last=self.step + 10**6)

    def train(self) -> None:
        """One step: what every lane was given goes to the log, in place of what a lost attempt logged."""
        given: list[tuple[int, int, int]] = []
        for lane, loader in enumerate(self._loaders):
            step, _ = loader.take(self.step)
            rows = [row for microbatch in step.microbatches for row in microbatch.rows]
            assert [row.row_id % self._num_lanes for row in rows] == [lane] * len(rows)
            numbers = iter(step.numbers)
            for row in rows:
                for _ in row.records:
                    epoch, sample = next(numbers)
                    assert epoch == row.epoch
                    given.append((row.row_id % VIRTUAL_LANES, epoch, sample))
        self._log[self.step] = given
        self.step += 1

    def save(self) -> str:
        state = EnergonState.of(
            [loader.state(self.step) for loader in self._loaders],
            step=self.step,
            consumed=Counts(self.step * ROWS, 0, 0, 0),
            settings=self._data.order,
        )
        return json.dumps(state.to_json())

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()


def soak(
    data: EnergonRunData, num_steps: int, *, seed: int, patch: pytest.MonkeyPatch
) -> tuple[Log, Counter[str]]:
    """Trains to ``num_steps``. Between places that Energon can begin from lie other numbers of rows in each
    attempt; of its 12 or 13 samples a virtual lane shuffles 2 together, so that there are such places."""
    patch.setattr(virtual, "SHUFFLE_SAMPLES", 2)
    rng = np.random.default_rng(seed)
    log: Log = {}
    saved, met = "", Counter[str]()
    while True:
        patch.setattr(virtual, "SNAPSHOT_ROWS", int(rng.choice([1, 4, 16])))
        attempt = Attempt(data, saved, log, rng)
        met["attempts"] += 1
        try:
            while attempt.step < num_steps:
                attempt.train()
                chance = rng.random()
                if chance < 0.15:
                    saved = attempt.save()
                    met["saves"] += 1
                    met["in Energon's words"] += '"flex"' in saved
                elif chance < 0.2:
                    met["kills"] += 1
                    break
            else:
                return log, met
        finally:
            attempt.close()


def check(log: Log, num_steps: int) -> int:
    """Epochs that every sample was trained on."""
    assert sorted(step for step in log if step < num_steps) == list(range(num_steps))
    epochs: dict[int, list[int]] = defaultdict(list)
    owner: dict[int, int] = {}
    for step in range(num_steps):
        for lane, epoch, sample in log[step]:
            assert owner.setdefault(sample, lane) == lane
            epochs[sample].append(epoch)
    assert sorted(epochs) == list(range(NUM_SAMPLES))
    for found in epochs.values():
        assert found == list(range(len(found)))  # each once, one after the other
    for lane in range(VIRTUAL_LANES):
        times = {len(found) for sample, found in epochs.items() if owner[sample] == lane}
        assert max(times) - min(times) <= 1  # the last one is not over
    return min(map(len, epochs.values()))


def test_a_short_soak(jsonl: EnergonData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, met = soak(run_data(tmp_path, jsonl, "greedy"), 60, seed=1, patch=monkeypatch)
    assert check(log, 60) >= 6
    assert met["kills"] >= 2
    assert met["saves"] >= 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("packing", "epochs"), [("greedy", 200), ("none", 100), ("first_fit_decreasing", 200)]
)
def test_a_soak_of_two_thousand_steps(
    data: EnergonData, tmp_path: Path, packing: str, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, met = soak(run_data(tmp_path, data, packing), 2000, seed=len(packing), patch=monkeypatch)
    assert check(log, 2000) >= epochs
    assert met["kills"] >= 50
    assert met["saves"] >= 200
    assert met["in Energon's words"] >= 50
