"""Going on from a saved state: exactly, under any number of lanes, and never silently with other data."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon import virtual
from rankloom.data.energon.state import EnergonState
from rankloom.data.energon.task import RowSettings
from rankloom.errors import RunError, UserError
from rankloom.records.energon import EnergonData
from tests.data.energon.runs import Run

MANY = 400  # rows: several epochs


@pytest.mark.parametrize("lanes", [8, 4, 2, 1])
def test_saved_under_8_lanes_resumed_under_others(
    data: EnergonData, encoder: ChatEncoder, lanes: int
) -> None:
    run = Run(data, encoder, num_lanes=8)
    run.rows(104)
    resumed = Run(data, encoder, num_lanes=lanes).restore(run.saved())
    assert resumed.numbers(48) == run.numbers(48)


def test_resume_of_a_resume(data: EnergonData, encoder: ChatEncoder) -> None:
    whole = Run(data, encoder, num_lanes=1).numbers(MANY)
    found = []
    content = None
    for lanes, rows in ((4, 8), (1, 72), (8, 0), (2, 120), (8, 80), (1, 120)):
        run = Run(data, encoder, num_lanes=lanes)
        if content is not None:
            run.restore(content)
        found += run.numbers(rows)
        content = run.saved()
    assert found == whole


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    saves=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=5),
    packing=st.sampled_from(["none", "greedy", "first_fit_decreasing"]),
    every=st.sampled_from([1, 3, 1000]),
)
def test_any_saves_and_lanes(
    jsonl: EnergonData,
    encoder: ChatEncoder,
    saves: list[tuple[int, int]],
    packing: Any,
    every: int,
) -> None:
    """``every``: rows between the places Energon can begin from; 1000: all is made again from the beginning
    of the epoch."""
    rows = RowSettings(max_seq_length=64, packing=packing, packing_window=6)
    total = 8 * sum(steps for steps, _ in saves)
    found = []
    content = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual, "SNAPSHOT_ROWS", every)
        patch.setattr(virtual, "SHUFFLE_SAMPLES", 2)  # of 12 or 13: there are places inside an epoch
        whole = Run(jsonl, encoder, num_lanes=1, settings=rows).numbers(total)
        for steps, lanes in saves:
            run = Run(jsonl, encoder, num_lanes=lanes, settings=rows)
            if content is not None:
                run.restore(content)
            found += run.numbers(8 * steps)
            content = run.saved()
    assert found == whole


@pytest.mark.parametrize("shuffled", [pytest.param(1, marks=pytest.mark.long), 4])
def test_energon_state_is_used_inside_an_epoch_and_not_behind_its_last_sample(
    data: EnergonData, encoder: ChatEncoder, shuffled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last sample, Energon's state begins another epoch while samples of this one wait in its
    buffers."""
    monkeypatch.setattr(virtual, "SNAPSHOT_ROWS", 1)
    monkeypatch.setattr(virtual, "SHUFFLE_SAMPLES", shuffled)
    whole = Run(data, encoder, num_lanes=1, num_virtual_lanes=2)
    expected = whole.numbers(MANY)
    run = Run(data, encoder, num_lanes=1, num_virtual_lanes=2)
    used = set()
    for rows in range(0, 48, 2):
        content = run.saved()
        used |= {state["energon"] is not None for state in content["virtual_lanes"].values()}
        resumed = Run(data, encoder, num_lanes=2, num_virtual_lanes=2).restore(content)
        assert resumed.numbers(20) == expected[rows : rows + 20]
        run.rows(2)
    assert used == {True, False}


@pytest.mark.parametrize(("packing", "every"), [("greedy", 1), ("greedy", 4), ("none", 4)])
def test_a_resume_of_a_resume_from_energon_s_own_state(
    data: EnergonData, encoder: ChatEncoder, packing: Any, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energon changes a state that it is restored from; what is saved soon afterwards must not."""
    monkeypatch.setattr(virtual, "SNAPSHOT_ROWS", every)
    monkeypatch.setattr(virtual, "SHUFFLE_SAMPLES", 2)
    rows = RowSettings(max_seq_length=64, packing=packing, packing_window=4)
    whole = Run(data, encoder, num_lanes=1, settings=rows).numbers(112)
    used = 0
    for first in (40, 48):
        run = Run(data, encoder, num_lanes=1, settings=rows)
        run.rows(first)
        content = run.saved()
        used += sum(state["energon"] is not None for state in content["virtual_lanes"].values())
        for second in (8, 16):
            again = Run(data, encoder, num_lanes=2, settings=rows).restore(content)
            again.rows(second)
            last = Run(data, encoder, num_lanes=4, settings=rows).restore(again.saved())
            assert last.numbers(48) == whole[first + second : first + second + 48]
    assert used > 0


def test_state_of_rows_before_those_read_ahead(data: EnergonData, encoder: ChatEncoder) -> None:
    run = Run(data, encoder, num_lanes=4)
    run.rows(64)
    content = run.saved(rows=40)
    again = Run(data, encoder, num_lanes=2).restore(content)
    whole = Run(data, encoder, num_lanes=1)
    whole.rows(40)
    assert again.numbers(64) == whole.numbers(64)


def test_places_to_begin_from_are_forgotten_once_they_are_behind(
    jsonl: EnergonData, encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "SNAPSHOT_ROWS", 1)
    run = Run(jsonl, encoder, num_lanes=1, num_virtual_lanes=1)
    for _ in range(50):
        run.rows(2)
        run.saved()
    (lane,) = run.lanes[0]._owned.values()
    assert len(lane._marks) <= 3


def test_state_is_small_plain_json(data: EnergonData, encoder: ChatEncoder) -> None:
    run = Run(data, encoder, num_lanes=2)
    run.rows(64)
    text = json.dumps(run.saved())
    assert "pickle" not in text
    assert len(text) < 8 * 30_000


def test_epochs_and_skips_go_on(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    settings = RowSettings(max_seq_length=26, packing_window=8)
    run = Run(jsonl, encoder, num_lanes=1, settings=settings)
    run.rows(40)
    other = Run(jsonl, encoder, num_lanes=2, settings=settings).restore(run.saved())
    assert sum(lane.epochs for lane in other.lanes) == pytest.approx(run.lanes[0].epochs)
    run.rows(8)
    other.rows(8)
    assert sum(lane.epochs for lane in other.lanes) == pytest.approx(run.lanes[0].epochs)
    skipped = other.lanes[0].skipped + other.lanes[1].skipped
    assert skipped == run.lanes[0].skipped != {}


CHANGED = {
    "data.num_virtual_lanes": (8, 4),
    "data.packing": ("greedy", "none"),
    "data.seed": (0, 7),
    "the data set": ("100 samples, fingerprint 12", "90 samples, fingerprint 34"),
}


@pytest.mark.parametrize("key", CHANGED)
def test_changed_settings_are_refused_with_both_values(key: str) -> None:
    saved = {name: values[0] for name, values in CHANGED.items()}
    state = EnergonState({}, {}, saved, {})  # type: ignore[arg-type]
    state.check(dict(saved))
    was, now = CHANGED[key]
    with pytest.raises(UserError) as refusal:
        state.check(saved | {key: now})
    assert str(refusal.value) == (
        f"the run cannot continue in its data: {key} was {was}, now it is {now}. Set it back to continue "
        "exactly"
    )


def test_other_virtual_lanes_are_refused(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    content = Run(jsonl, encoder, num_lanes=1).saved()
    with pytest.raises(UserError, match=r"data.num_virtual_lanes was 8, now it is 4"):
        Run(jsonl, encoder, num_lanes=1, num_virtual_lanes=4).restore(content)


def test_a_state_of_another_place_is_refused(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    run = Run(jsonl, encoder, num_lanes=1)
    run.rows(16)
    states = run.lanes[0].state(16)
    with pytest.raises(RunError) as refusal:
        run.lanes[0].restore(24, states)
    assert str(refusal.value) == (
        "virtual lane 0 of 8 stands at its row 2; after 24 rows of the run it is to go on with its row 3"
    )


def test_a_missing_virtual_lane_is_refused(jsonl: EnergonData, encoder: ChatEncoder) -> None:
    content = dict(Run(jsonl, encoder, num_lanes=1).saved())
    content["virtual_lanes"] = {n: state for n, state in content["virtual_lanes"].items() if n != "5"}
    with pytest.raises(
        UserError, match=r"damaged: each of 8 virtual lanes is needed once; missing are \[5\]"
    ):
        EnergonState.from_json(content)


@pytest.mark.parametrize("content", [{}, {"format": 1, "source": "energon"}, {"format": 1, "source": 3}])
def test_what_is_no_state_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"data state of source|not the state of an Energon data set"):
        EnergonState.from_json(content)
