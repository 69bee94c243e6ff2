"""Runs over several hosts, each with an address of its own: what they compute, and what ends them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.driver.engine import hosts as hosts_module
from tests.driver.engine.hosts import Hosts, hosts
from tests.runtime.runs import run, settings, write_chats
from tests.train.processes import ROOT, until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(hosts_module.cannot_be_made()), reason=hosts_module.cannot_be_made()),
]

LAYOUT = {"tensor_parallel_num_weight_shards": 4, "tensor_parallel_num_sequence_shards": 2}


def config(folder: Path, *, name: str, steps: int) -> dict[str, Any]:
    """Weights and contexts over all four ranks."""
    (folder / "chats.jsonl").exists() or write_chats(folder / "chats.jsonl")
    made = settings(folder, parallel=LAYOUT, world_size=4, train={"max_steps": steps})
    made["schedule"] = {"decay": "constant"}
    made["checkpoint"] = {"dir": str(folder / name), "save_every": 2}
    return made


class Command:
    """``rankloom train`` on the cluster of some hosts."""

    def __init__(self, there: Hosts, given: dict[str, Any]) -> None:
        self.folder = Path(given["checkpoint"]["dir"])
        given["cluster"] = given["cluster"] | {"engine": "ray", "address": there.address}
        file = self.folder.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(given))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankloom", "train", str(file)],
            cwd=ROOT,
            env=there.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code, and stderr."""
        _, err = self.process.communicate(timeout=300)
        return self.process.returncode, err

    def rows(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def addresses(self) -> list[str]:
        """Of the hosts of the ranks, in rank order."""
        placed = json.loads((self.folder / "placement.json").read_text())
        return [place["address"] for place in placed["ranks"]]


def processes_of_ranks() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().rstrip(b"\0").decode()
        except OSError:
            continue
        found += [title] if title.startswith("ray::Rank") else []
    return found


def test_ranks_of_two_hosts_train_as_on_one(ranks: Any, tmp_path: Path) -> None:
    whole = config(tmp_path, name="whole", steps=6)
    wanted = ranks(4, run, whole)[0]
    with hosts("gpu-a", "gpu-b") as there, there.node("gpu-a", num_cpus=2), there.node("gpu-b", num_cpus=2):
        command = Command(there, config(tmp_path, name="run", steps=6))
        code, err = command.end()
        assert code == 0, err
        found = {there.address_of(name): name for name in there.names}
        assert [found[address] for address in command.addresses()] == ["gpu-a", "gpu-a", "gpu-b", "gpu-b"]
        assert f"joined the cluster at {there.address}: 3 nodes, 4 CPUs" in err
    assert [row["step"] for row in command.rows()] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in command.rows()] == pytest.approx([row["loss"] for row in wanted], rel=1e-6)


def test_a_host_that_does_not_see_the_data_is_named(tmp_path: Path) -> None:
    given = config(tmp_path, name="run", steps=2)
    data = tmp_path / "data"
    data.mkdir()
    Path(given["data"]["train"]).rename(data / "chats.jsonl")
    given["data"]["train"] = str(data / "chats.jsonl")
    with (
        hosts("gpu-a", "gpu-b") as there,
        there.node("gpu-a", num_cpus=2),
        there.node("gpu-b", num_cpus=2, hidden=data),
    ):
        since = time.monotonic()
        code, err = Command(there, given).end()
        taken = time.monotonic() - since
        address = there.address_of("gpu-b")
    assert code == 2, err
    assert f"gpu-b ({address}) has no {data / 'chats.jsonl'}" in err
    assert "gpu-a" not in err[err.index("rankloom train:") :]
    assert "Traceback" not in err
    assert taken < 60


def test_a_host_whose_cable_is_pulled_is_named_and_the_run_goes_on_elsewhere(
    ranks: Any, tmp_path: Path
) -> None:
    """Nothing ends there by itself at once, and nothing answers."""
    whole = config(tmp_path, name="whole", steps=8)
    wanted = ranks(4, run, whole)[0]
    with hosts("gpu-a", "gpu-b", "gpu-c") as there:
        names = there.names
        with (
            there.node(names[0], num_cpus=2),
            there.node(names[1], num_cpus=2),
            there.node(names[2], num_cpus=2),
        ):
            given = config(tmp_path, name="run", steps=8)
            given["cluster"]["restarts"] = 1
            given["comm"] = {"timeout_s": 10}
            command = Command(there, given)
            until(lambda: len(command.rows()) >= 3)
            at = {there.address_of(name): name for name in names}
            lost = at[command.addresses()[-1]]
            there.pull_cable(lost)
            code, err = command.end()
            used = {at[address] for address in command.addresses()}
            assert code == 0, err
            # Those that nobody can reach end once Ray's own connections are given up there, after minutes.
            until(lambda: processes_of_ranks() == [], timeout_s=300)
    assert lost not in used
    assert used == set(names) - {lost}
    assert "restart 1 of 1" in err
    [told] = [line for line in err.splitlines() if line.startswith("rank ") and "ranks 2, 3" in line]
    assert told.startswith(("rank 2 (", "rank 3 (")), told
    assert f"on node {lost} ({there.address_of(lost)}): " in told
    assert [row["step"] for row in command.rows()] == list(range(1, 9))
    assert [row["loss"] for row in command.rows()] == pytest.approx([row["loss"] for row in wanted], rel=1e-5)
