"""Data sets that are made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.data.encoding import ChatEncoder
from rankloom.records.energon import EnergonData
from tests.data.energon import datasets


@pytest.fixture(scope="session")
def encoder() -> ChatEncoder:
    return datasets.encoder()


@pytest.fixture(scope="session")
def jsonl(tmp_path_factory: pytest.TempPathFactory) -> EnergonData:
    folder: Path = tmp_path_factory.mktemp("jsonl")
    return datasets.jsonl(folder, [datasets.chat(number) for number in range(datasets.NUM_SAMPLES)])


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> EnergonData:
    folder: Path = tmp_path_factory.mktemp("tars")
    return datasets.webdataset(folder, [datasets.chat(number) for number in range(datasets.NUM_SAMPLES)])


@pytest.fixture(params=["jsonl", "tars"])
def data(request: pytest.FixtureRequest) -> EnergonData:
    found: EnergonData = request.getfixturevalue(request.param)
    return found
