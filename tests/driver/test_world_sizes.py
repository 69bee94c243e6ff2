"""With how many ranks a run goes on when some are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.config import ResolvedConfig, resolve
from rankloom.driver.world_sizes import largest_world_size
from rankloom.errors import UserError
from tests.train import runs


def config(**settings: object) -> ResolvedConfig:
    """16 ranks, TP 2 x GTP_remat 2, a global batch of 16."""
    mapping = runs.mapping(Path("unused"), world_size=16)
    mapping["parallel"] = {"tensor_model_parallel_size": 2, "tensor_parallel_num_weight_shards": 4}
    mapping["train"]["global_batch_size"] = 16
    return resolve(mapping, cli=settings)


@pytest.mark.parametrize(
    ("present", "expected"),
    [(99, 16), (16, 16), (15, 8), (12, 8), (11, 8), (8, 8), (7, 4), (4, 4)],
)
def test_the_most_that_divide_weights_and_batch(present: int, expected: int) -> None:
    """Of 12 ranks the batch would go over 6 lanes, and 16 is no multiple of 6."""
    found = largest_world_size(config(), present=present, min_world_size=1)
    assert found.world_size == found.resolved.layout.world_size == expected
    assert found.resolved.layout.tensor_parallel_num_weight_shards == 4
    assert found.resolved.batch.global_batch_size == 16


def test_the_choice_says_why() -> None:
    reason = largest_world_size(config(), present=14, min_world_size=4).reason
    assert reason.startswith(
        "8 ranks of 14 there is room for: a multiple of 4 = weight shards 4 x context 1 x pipeline 1; "
        "global_batch_size 16 = micro_batch_size 1 x 4 lanes x 4 microbatches; "
        "not 12: train.global_batch_size 16 is not a multiple of 6 = "
    )


def test_context_and_sequence_shards_are_kept() -> None:
    settings = {
        "parallel.context_parallel_size": 2,
        "parallel.tensor_parallel_num_sequence_shards": 4,
        "train.global_batch_size": 8,
    }
    found = largest_world_size(config(**settings), present=15, min_world_size=1)
    assert found.world_size == 8
    assert found.resolved.layout.runtime_context_parallel_size == 4


def test_a_smaller_batch_allows_more() -> None:
    found = largest_world_size(config(**{"train.global_batch_size": 24}), present=15, min_world_size=1)
    assert found.world_size == 12


def test_without_a_minimum_nothing_smaller_is_allowed() -> None:
    with pytest.raises(UserError, match=r"room for 15 ranks, and the run needs cluster.world_size 16"):
        largest_world_size(config(), present=15)


def test_fewer_than_the_minimum() -> None:
    with pytest.raises(UserError, match=r"room for 7 ranks, and the run needs min_world_size 8"):
        largest_world_size(config(), present=7, min_world_size=8)


def test_no_number_in_between_will_do() -> None:
    with pytest.raises(UserError) as caught:
        largest_world_size(config(), present=12, min_world_size=9)
    first, tried = str(caught.value).splitlines()
    assert first == (
        "there is room for 12 ranks, and no number of ranks from 9 to 12 will do: it has to be a multiple of "
        "4 = weight shards 4 x context 1 x pipeline 1"
    )
    assert tried.startswith("12: train.global_batch_size 16 is not a multiple of 6")


def test_rules_beside_the_layout_count_too() -> None:
    """Ramps of the batch have to divide over the lanes as well."""
    ramped = config(**{"train.global_batch_size": 24, "train.rampup_batch_size": [8, 8, 48]})
    assert largest_world_size(ramped, present=15, min_world_size=1).world_size == 8
