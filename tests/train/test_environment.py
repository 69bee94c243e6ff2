"""What the machine and its environment variables say, where it does not fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from rankloom.errors import UserError
from rankloom.train.assemble import connect
from rankloom.train.local import _threads_of_a_rank
from tests.train import runs


@pytest.mark.parametrize(("text", "threads"), [(None, 1), ("", 1), ("3", 3), ("4,2", 4)])
def test_the_first_number_of_openmp_counts(
    monkeypatch: pytest.MonkeyPatch, text: str | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if text is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", text)
    with _threads_of_a_rank() as num_threads:
        assert num_threads == threads
        assert os.environ["OMP_NUM_THREADS"] == (text or "1")


@pytest.mark.parametrize("text", ["abc", "0", "-2", "2.5", ",4"])
def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    with pytest.raises(UserError, match=f"OMP_NUM_THREADS is '{text}'"), _threads_of_a_rank():
        pass


def test_cuda_without_gpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    resolved = runs.config(tmp_path, **{"cluster.device": "cuda"})
    with pytest.raises(
        UserError, match=r"cluster.device is cuda, but torch sees no GPU here.*--cluster.device"
    ):
        connect(resolved, rank=0, local_rank=0, init_method="env://", activity=None)  # type: ignore[arg-type]
