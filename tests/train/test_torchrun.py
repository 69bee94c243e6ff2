"""The torchrun engine: the environment it reads, and runs that torchrun really starts."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest

from rankloom.config import resolve
from rankloom.errors import UserError
from rankloom.train import TorchrunEnvironment
from rankloom.train.torchrun import check_environment
from tests.train import runs
from tests.train.launch import TIMEOUT_S
from tests.train.processes import Launch

VARIABLES = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def environment(**changes: str) -> TorchrunEnvironment:
    read = TorchrunEnvironment.read({**VARIABLES, **changes})
    assert read is not None
    return read


def test_the_environment_is_torchruns_or_none() -> None:
    assert TorchrunEnvironment.read({"RANK": "3"}) is None
    assert (environment().rank, environment().local_rank, environment().world_size) == (3, 1, 4)
    assert environment().run != environment(TORCHELASTIC_RESTART_COUNT="1").run


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["one", "", "-1", "1.5"])
def test_a_variable_that_is_no_number_is_named(name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"environment variable {name} is '{text}'; it must be a number"):
        environment(**{name: text})


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(UserError, match="RANK is 4 and WORLD_SIZE is 4"):
        environment(RANK="4")


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_alone_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = {
        "RANK": rank,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    started = time.monotonic()
    code, _, err = Launch("torchrun", "connect_only", str(tmp_path)).end()
    assert time.monotonic() - started < 30
    assert code == 1
    assert f"comm.timeout_s = {TIMEOUT_S:g} s" in err
    assert "frame #" not in err
    assert ("rank 1 (" if rank == 0 else "1 of 2 ranks is known to have arrived") in err


def test_engine_and_world_size_come_from_torchrun(tmp_path: Path) -> None:
    resolved = resolve(runs.mapping(tmp_path, world_size=None), defaults=environment().defaults())
    check_environment(resolved, environment())
    assert (resolved.cluster.engine, resolved.layout.world_size) == ("torchrun", 4)


def test_another_world_size_is_refused(tmp_path: Path) -> None:
    resolved = resolve(runs.mapping(tmp_path, world_size=8), defaults=environment().defaults())
    with pytest.raises(UserError, match=re.escape("cluster.world_size 8 is not torchrun's 4")):
        check_environment(resolved, environment())


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_another_engine_is_refused_under_torchrun(tmp_path: Path, engine: str) -> None:
    resolved = runs.config(tmp_path, **{"cluster.engine": engine})
    with pytest.raises(UserError, match=r"each of 4 would start ranks of its own.*--cluster.engine"):
        check_environment(resolved, environment())


def test_the_torchrun_engine_is_refused_without_torchrun(tmp_path: Path) -> None:
    resolved = runs.config(tmp_path, **{"cluster.engine": "torchrun"})
    with pytest.raises(UserError, match="torchrun --nproc-per-node 4 -m rankloom train"):
        check_environment(resolved, None)


def torchrun(run: str, folder: Path) -> tuple[int, str, str]:
    module = "torch.distributed.run --standalone --nproc-per-node 2 -m tests.train.launch"
    return Launch("torchrun", run, str(folder), module=module).end()


def test_a_run_under_torchrun_ends_well_and_only_rank_0_reports(tmp_path: Path) -> None:
    code, out, err = torchrun("well", tmp_path)
    assert code == 0, err
    assert out.count("trained 3 steps") == 1
    assert err.count("step 3/3") == 1


@pytest.mark.long
def test_a_user_error_of_all_ranks_is_shown_once(tmp_path: Path) -> None:
    code, _, err = torchrun("refuse_on_all", tmp_path)
    assert code != 0
    assert err.count("rankloom train: chats.jsonl, line 3") == 1


@pytest.mark.long
def test_a_refused_config_is_shown_once() -> None:
    module = "torch.distributed.run --standalone --nproc-per-node 2 -m rankloom"
    code, _, err = Launch("train", "nowhere.yaml", module=module).end()
    assert code != 0
    assert err.count("rankloom train: ") == 1


@pytest.mark.long
def test_an_exception_under_torchrun_names_its_rank(tmp_path: Path) -> None:
    code, _, err = torchrun("raise_on_last_rank", tmp_path)
    assert code != 0
    assert "rankloom train: rank 1 (tp 1, gtp_seq 0, gtp_batch 0, " in err
    assert "failed in step 3: forward, microbatch 1: ValueError: a bad number" in err


@pytest.mark.long
def test_a_hang_under_torchrun_is_reported_once(tmp_path: Path) -> None:
    code, _, err = torchrun("hang_on_last_rank", tmp_path)
    assert code != 0
    assert err.count("the ranks wait for each other") == 1
    assert "did not arrive; it is in step 4: forward, microbatch 0, at " in err
