"""The learning rate at exact counts of samples."""

from __future__ import annotations

from typing import Any

import pytest

from rankloom.optim import LearningRate


def rate(**changes: Any) -> LearningRate:
    given = {"peak": 1.0, "minimum": 0.0, "decay": "constant", "warmup_samples": 80, "decay_samples": 800}
    return LearningRate(**(given | changes))


def test_warm_up_of_ten_global_batches_is_half_way_at_step_five() -> None:
    global_batch = 8
    lrs = [rate().at(step * global_batch) for step in range(1, 12)]
    assert lrs == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_the_peak_is_reached_at_the_end_of_warm_up(decay: str) -> None:
    assert rate(decay=decay).at(79) == 79 / 80
    assert rate(decay=decay).at(80) == 1.0
    assert rate(decay=decay, warmup_samples=0).at(0) == 1.0


@pytest.mark.parametrize(
    ("decay", "half_way", "end"), [("constant", 1.0, 1.0), ("linear", 0.6, 0.2), ("cosine", 0.6, 0.2)]
)
def test_decay_ends_at_the_minimum_and_stays_there(decay: str, half_way: float, end: float) -> None:
    lr = rate(decay=decay, minimum=0.2)
    assert lr.at(440) == pytest.approx(half_way, rel=1e-15)
    assert lr.at(800) == pytest.approx(end, rel=1e-15)
    assert lr.at(10_000) == pytest.approx(end, rel=1e-15)


def test_cosine_is_a_quarter_of_the_way_at_a_third() -> None:
    lr = rate(decay="cosine", warmup_samples=0, decay_samples=300)
    assert lr.at(100) == pytest.approx(0.75, rel=1e-15)
    assert lr.at(200) == pytest.approx(0.25, rel=1e-15)


@pytest.mark.parametrize("decay_samples", [40, 80])
@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_decay_that_ends_within_warm_up_drops_to_the_minimum_after_it(
    decay: str, decay_samples: int
) -> None:
    lr = rate(decay=decay, decay_samples=decay_samples, minimum=0.1)
    assert lr.at(79) == 79 / 80  # warm-up is finished first
    assert lr.at(80) == 1.0
    assert lr.at(81) == 0.1


def test_the_rate_does_not_depend_on_what_was_asked_before() -> None:
    lr = rate(decay="cosine")
    later = [lr.at(n) for n in (500, 8, 500, 80)]
    assert later[0] == later[2]
    assert later == [rate(decay="cosine").at(n) for n in (500, 8, 500, 80)]


def test_wsd_stays_and_then_falls_as_megatron_lets_it() -> None:
    """Warm-up over 80, then 1 until the last 200 of 800, then 2 x 0.5^x - 1."""
    lr = rate(decay="wsd", wsd_decay_samples=200)
    assert [lr.at(n) for n in (40, 80, 300, 600)] == [0.5, 1.0, 1.0, 1.0]
    assert lr.at(700) == pytest.approx(2 * 0.5**0.5 - 1, rel=1e-15)
    assert lr.at(800) == lr.at(900) == 0.0
    low = rate(decay="wsd", wsd_decay_samples=200, peak=3.0, minimum=1.0)
    assert low.at(600) == 3.0
    assert low.at(650) == pytest.approx(1 + 2 * (2 * 0.5**0.25 - 1), rel=1e-15)
    assert low.at(800) == 1.0


def test_wsd_that_would_begin_in_the_warm_up_begins_after_it() -> None:
    lr = rate(decay="wsd", wsd_decay_samples=5000)
    assert lr.at(80) == 1.0
    assert lr.at(440) == pytest.approx(2 * 0.5**0.5 - 1, rel=1e-15)
