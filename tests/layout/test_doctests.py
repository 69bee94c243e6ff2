"""The worked examples in docstrings are right."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from rankloom.layout import GTPParallelLayout

MODULES = ("arithmetic", "axes", "driver", "gtp", "provenance", "spellings", "views", "words")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = import_module(f"rankloom.layout.{name}")
    outcome = doctest.testmod(module, extraglobs={"GTPParallelLayout": GTPParallelLayout})
    assert outcome.attempted > 0
    assert outcome.failed == 0
