"""The main test: many layouts against one process, ten steps from a chat file to exported weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.parity.compare import Differences
from tests.parity.layouts import LAYOUTS, LONG_LAYOUTS, Layout, layout
from tests.parity.problems import FAMILIES, Problem, from_folder, from_seed

Compared = Callable[[Problem, Layout], Differences]

SEEDED = from_seed("llama_seeded")
TRAINED = {family: from_folder(f"{family}_folder", family) for family in FAMILIES}
OF_EACH_FAMILY = (
    layout("4 TP2 W4 Q4", rows=4),
    pytest.param(layout("4 W2 Q2 CP2", rows=2), marks=pytest.mark.long),
    pytest.param(layout("8 TP2 W4 CP2 other-order", rows=4), marks=pytest.mark.long),
)
PRODUCT = [
    (family, where)
    for family, problem in TRAINED.items()
    for where in LONG_LAYOUTS
    if problem.model_config["num_key_value_heads"] % where.tp == 0
]


@pytest.mark.parametrize("where", LAYOUTS, ids=str)
def test_layout(compared: Compared, where: Layout) -> None:
    compared(SEEDED, where).refuse()


@pytest.mark.parametrize("where", OF_EACH_FAMILY, ids=str)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "llama"])
def test_family(compared: Compared, family: str, where: Layout) -> None:
    compared(TRAINED[family], where).refuse()


@pytest.mark.long
@pytest.mark.parametrize(("family", "where"), PRODUCT, ids=str)
def test_family_in_every_layout(compared: Compared, family: str, where: Layout) -> None:
    compared(TRAINED[family], where).refuse()
