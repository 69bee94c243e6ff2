"""Every layout against a brute-force count of its ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from tests.layout.brute import CASES, COMPOSITES, PRIMITIVE, Case

NAMES = st.sampled_from(
    [*COMPOSITES, *((view, axis) for view in ("weights", "tokens") for axis in PRIMITIVE)]
)
FEW = settings(max_examples=60, deadline=None)


@FEW
@given(case=CASES)
def test_coords_and_indices(case: Case) -> None:
    layout = case.layout()
    arrays = layout.coord_arrays()
    assert list(layout.ranks) == list(case.coordinates())
    for place, (rank, at) in enumerate(case.coordinates().items()):
        expected = at | case.indices(at)
        coords = layout.coords(rank)
        assert {name: getattr(coords, name) for name in expected} == expected
        assert {name: int(array[place]) for name, array in arrays.items()} == expected
        assert coords.rank == rank
        assert layout.lane(rank) == expected["lane"]
        assert coords.describe().startswith(f"tp {at['tp']}, gtp_seq {at['gtp_seq']}, gtp_batch ")


@FEW
@given(case=CASES, named=NAMES)
def test_groups_of_one_name(case: Case, named: tuple[str, str]) -> None:
    view_name, name = named
    view = getattr(case.layout(), view_name)
    expected = case.groups(COMPOSITES.get(named, (name,)))
    groups = view.groups(name)
    assert groups.tolist() == expected
    assert groups.ndim == 2
    assert groups.dtype == np.int64
    assert view.size(name) == groups.shape[1]
    for group in expected:
        for place, rank in enumerate(group):
            assert view.group_of(rank, name) == tuple(group)
            assert view.place_of(rank, name) == place


@FEW
@given(
    case=CASES,
    axes=st.lists(st.sampled_from(PRIMITIVE), unique=True),
    view_name=st.sampled_from(["weights", "tokens"]),
)
def test_groups_of_any_axes_in_any_order(case: Case, axes: list[str], view_name: str) -> None:
    view = getattr(case.layout(), view_name)
    assert view.groups(axes).tolist() == case.groups(tuple(axes))
    assert view.groups(tuple(reversed(axes))).tolist() == view.groups(tuple(axes)).tolist()


@FEW
@given(case=CASES)
def test_a_place_in_a_group_is_the_index_of_the_view(case: Case) -> None:
    layout = case.layout()
    remat = case.gtp_seq * case.gtp_batch
    for rank in layout.ranks:
        at = layout.coords(rank)
        assert layout.weights.place_of(rank, "tp") == at.tp
        assert layout.weights.place_of(rank, "gtp_remat") == at.weight_shard
        assert layout.weights.place_of(rank, "tp_gtp_remat") == at.weight_shard * case.tp + at.tp
        assert layout.weights.place_of(rank, "replica") == at.replica
        assert layout.weights.place_of(rank, "pp") == at.pp
        assert layout.tokens.place_of(rank, "context") == at.context
        assert layout.tokens.place_of(rank, "batch") == at.lane
        contexts = case.cp * case.gtp_seq
        assert layout.tokens.place_of(rank, "lane") == (at.pp * contexts + at.context) * case.tp + at.tp
        together = layout.weights.place_of(rank, "gtp_remat_replica")
        if case.order == "tp-gtp-cp-dp-pp":
            assert together == at.replica * remat + at.weight_shard
        else:
            assert together == at.lane * contexts + at.context


def test_replicas_and_shards_together_follow_the_rank_order() -> None:
    """In the second order gtp_remat_replica goes by (lane, context), not by (replica, weight_shard)."""
    layout = Case(1, 1, 2, 2, 1, 1, order="tp-cp-gtp-dp-pp").layout()
    places = [layout.weights.place_of(rank, "gtp_remat_replica") for rank in layout.ranks]
    by_shard = [layout.coords(rank).replica * 2 + layout.coords(rank).weight_shard for rank in layout.ranks]
    assert places == [0, 1, 2, 3]
    assert by_shard == [0, 2, 1, 3]


@FEW
@given(case=CASES)
def test_driver_axes(case: Case) -> None:
    layout = case.layout()
    axes = layout.driver_axes()
    assert axes.shape == (case.pp, case.dp * case.gtp_batch, case.cp * case.gtp_seq, case.tp)
    for rank, at in case.coordinates().items():
        index = case.indices(at)
        assert axes[at["pp"], index["lane"], index["context"], at["tp"]] == rank
    for lane in range(layout.batch_parallel_size):
        owner = layout.coords(layout.owner(lane))
        assert (owner.lane, owner.tp, owner.context, owner.pp) == (lane, 0, 0, 0)


@FEW
@given(case=CASES)
def test_sizes_and_equations(case: Case) -> None:
    layout = case.layout()
    sizes = layout.sizes
    assert layout.axis_sizes == {axis: getattr(case, axis) for axis in PRIMITIVE}
    assert sizes["world_size"] == case.world
    assert sizes["gtp_remat_size"] == case.gtp_seq * case.gtp_batch
    assert sizes["batch_parallel_size"] == case.dp * case.gtp_batch
    assert sizes["runtime_context_parallel_size"] == case.cp * case.gtp_seq
    assert sizes["num_weight_replicas"] == case.dp * case.cp
    assert all(sizes[name] == getattr(layout, name) for name in sizes)


@FEW
@given(one=CASES, other=CASES)
def test_fingerprint_tells_layouts_apart(one: Case, other: Case) -> None:
    a, b = one.layout(), other.layout()
    assert (a.fingerprint() == b.fingerprint()) == (a == b)
    assert pickle.loads(pickle.dumps(a)) == a
    assert hash(pickle.loads(pickle.dumps(a))) == hash(a)


SETTING = st.integers(min_value=1, max_value=24)


@settings(max_examples=300, deadline=None)
@given(
    world=SETTING | st.sampled_from([24, 48, 96]),
    tp=st.sampled_from([1, 1, 2, 3, 4, 5]),
    w=SETTING,
    q=st.none() | SETTING,
    cp=st.sampled_from([1, 1, 2, 3, 5]),
    pp=st.sampled_from([1, 1, 2, 3, 5]),
    sp=st.booleans(),
)
def test_arithmetic_resolves_exactly_when_every_division_is_even(
    world: int, tp: int, w: int, q: int | None, cp: int, pp: int, sp: bool
) -> None:
    degree = tp if sp else 1
    shards = q if q is not None else degree
    even = (
        w % tp == 0
        and shards % degree == 0
        and (w // tp) % (shards // degree) == 0
        and world % (w * cp * pp) == 0
        and (shards // degree == 1 or tp == 1 or sp)
    )
    keywords = {
        "world_size": world,
        "tensor_model_parallel_size": tp,
        "sequence_parallel": sp,
        "tensor_parallel_num_weight_shards": w,
        "tensor_parallel_num_sequence_shards": q,
        "context_parallel_size": cp,
        "pipeline_model_parallel_size": pp,
    }
    if even:
        layout = GTPParallelLayout.resolve(**keywords)  # type: ignore[arg-type]
        assert np.prod(list(layout.axis_sizes.values())) == world
    else:
        with pytest.raises(UserError, match=r"try \d|try \w+ \d|set sequence_parallel true"):
            GTPParallelLayout.resolve(**keywords)  # type: ignore[arg-type]
