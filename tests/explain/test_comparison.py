"""Two jobs compared: counts against brute force, verdicts word by word, and tables that fit 80 columns."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.explain.comparison import compare, comparison_object
from rankloom.explain.comparison_types import Comparison
from rankloom.explain.terminal_compare import MAX_RANKS, print_comparison
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan.job import Job
from tests.explain.jobs import console, demo, job, text
from tests.layout.brute import CASES, Case

AXES = {
    "tp": ("tp",),
    "gtp_remat": ("gtp_batch", "gtp_seq"),
    "tp_gtp_remat": ("tp", "gtp_batch", "gtp_seq"),
    "replica": ("dp", "cp"),
    "context": ("cp", "gtp_seq"),
    "batch": ("dp", "gtp_batch"),
    "lane": ("tp", "cp", "gtp_seq", "pp"),
    "pp": ("pp",),
    "gtp_remat_replica": ("gtp_batch", "gtp_seq", "dp", "cp"),
}
RESHAPE_BOTH = (
    "A plain reshape of the ranks to (PP, -1, runtime CP, TP) puts 4 ranks in the wrong lane, in both."
)


def placed(case: Case, domain_size: int) -> Job:
    layout = case.layout()
    return job(layout, topology=Topology.regular(layout, nvlink_domain_size=domain_size))


def numbers(case: Case, domain_size: int) -> dict[int, dict[str, int]]:
    """rank -> everything that may change, counted out by hand."""
    return {
        rank: at | case.indices(at) | {"domain": rank // domain_size}
        for rank, at in case.coordinates().items()
    }


def tokens(context: int, num_ranks: int, length: int) -> set[int]:
    """The tokens of a context rank: two of 2 x num_ranks chunks, one from each end."""
    if num_ranks == 1:
        return set(range(length))
    size = length // (2 * num_ranks)
    last = 2 * num_ranks - 1 - context
    return {*range(context * size, (context + 1) * size), *range(last * size, (last + 1) * size)}


def share(case: Case, at: dict[str, int], total: tuple[int, int]) -> dict[str, object]:
    """What a rank trains on and holds: rows of a batch, tokens of a row, and a box of the weights."""
    num_rows, length = total
    lanes, context = case.dp * case.gtp_batch, case.cp * case.gtp_seq
    remat = case.gtp_seq * case.gtp_batch
    return {
        "rows": {row for row in range(num_rows) if row % lanes == at["lane"]},
        "tokens": tokens(at["context"], context, length),
        "weights": [
            (Fraction(at[name], size), Fraction(at[name] + 1, size))
            for name, size in (("tp", case.tp), ("weight_shard", remat), ("pp", case.pp))
        ],
    }


def groups(case: Case, kind: str) -> set[tuple[int, ...]]:
    return {tuple(group) for group in case.groups(AXES[kind]) if len(group) > 1}


TWO = {"a": CASES, "b": CASES, "size_a": st.integers(1, 9), "size_b": st.integers(1, 9)}


@given(**TWO)
@settings(max_examples=60, deadline=None)
def test_every_count_against_brute_force(a: Case, b: Case, size_a: int, size_b: int) -> None:
    found = compare(placed(a, size_a), placed(b, size_b))
    of_a, of_b = numbers(a, size_a), numbers(b, size_b)
    both = sorted(set(of_a) & set(of_b))
    assert found.ranks.ranks.tolist() == both
    assert (found.only_a, found.only_b) == (len(of_a) - len(both), len(of_b) - len(both))
    for name, fields in {
        "lane": ["lane"],
        "context": ["context"],
        "replica": ["replica"],
        "domain": ["domain"],
        "shard": ["tp", "weight_shard", "pp"],
    }.items():
        changing = [r for r in both if any(of_a[r][field] != of_b[r][field] for field in fields)]
        assert found.ranks.counts[name] == len(changing), name
    total = (
        lcm(a.dp * a.gtp_batch, b.dp * b.gtp_batch),
        2 * lcm(a.cp * a.gtp_seq, b.cp * b.gtp_seq),
    )
    shares = [(share(a, of_a[r], total), share(b, of_b[r], total)) for r in both]
    for name, mask in (
        ("rows", found.other_rows),
        ("tokens", found.other_tokens),
        ("weights", found.other_shard),
    ):
        assert mask.tolist() == [old[name] != new[name] for old, new in shares], name


@given(**TWO)
@settings(max_examples=60, deadline=None)
def test_groups_and_links_against_brute_force(a: Case, b: Case, size_a: int, size_b: int) -> None:
    found = compare(placed(a, size_a), placed(b, size_b))
    changes = {change.kind: change for change in found.groups}
    for kind in AXES:
        old, new = groups(a, kind), groups(b, kind)
        if not old and not new:
            assert kind not in changes
            continue
        change = changes[kind]
        assert change.disappear == tuple(sorted(old - new))
        assert change.appear == tuple(sorted(new - old))
        assert (change.num_a, change.num_b) == (len(old), len(new))
    for link in found.links:
        if link.group not in AXES:
            continue
        for case, size, crossing, number in (
            (a, size_a, link.crossing_a, link.num_a),
            (b, size_b, link.crossing_b, link.num_b),
        ):
            own = groups(case, link.group)
            assert number == len(own)
            assert crossing == sum(len({rank // size for rank in group}) > 1 for group in own)


@given(**TWO)
@settings(max_examples=40, deadline=None)
def test_the_other_way_round_is_the_mirror(a: Case, b: Case, size_a: int, size_b: int) -> None:
    there, back = (
        compare(placed(a, size_a), placed(b, size_b)),
        compare(placed(b, size_b), placed(a, size_a)),
    )
    assert there.ranks.counts == back.ranks.counts
    assert (there.only_a, there.only_b) == (back.only_b, back.only_a)
    assert there.reshape_wrong == back.reshape_wrong[::-1]
    for name in ("other_rows", "other_tokens", "other_shard"):
        assert np.array_equal(getattr(there, name), getattr(back, name))
    assert [(s.name, s.a, s.b) for s in there.sizes] == [(s.name, s.b, s.a) for s in back.sizes]
    assert {(g.kind, g.appear) for g in there.groups} == {(g.kind, g.disappear) for g in back.groups}


@given(case=CASES, domain_size=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_a_job_does_not_differ_from_itself(case: Case, domain_size: int) -> None:
    found = compare(placed(case, domain_size), placed(case, domain_size))
    assert not any(found.ranks.counts.values())
    assert not found.sizes
    assert not found.settings
    assert not any(change.differs for change in (*found.groups, *found.links))
    assert not (found.other_rows | found.other_tokens | found.other_shard).any()
    assert found.verdict.startswith("Same layout: nothing moves.")
    assert comparison_object(found)["ranks"] == []


@given(**TWO)
@settings(max_examples=60, deadline=None)
def test_verdict_says_what_the_numbers_say(a: Case, b: Case, size_a: int, size_b: int) -> None:
    found = compare(placed(a, size_a), placed(b, size_b))
    verdict, both = found.verdict, len(found.ranks.ranks)
    assert verdict == " ".join(verdict.split())
    assert verdict.endswith(".")
    if not both:
        assert verdict.startswith("No rank is in both: A has ranks ")
        return
    those = f"the {both} that are in both are" if both > 1 else "the one that is in both is"
    assert (f"; {those} compared." in verdict) == bool(found.only_a or found.only_b)
    same = verdict.startswith("Same layout")
    other_data = int((found.other_rows | found.other_tokens).sum())
    other_weights = int(found.other_shard.sum())
    if same:
        assert (other_data, other_weights, found.sizes, found.ranks.counts["domain"]) == (0, 0, (), 0)
        return
    for number, none, some in (
        (other_data, "No rank trains on other data", "trains? on other data:"),
        (other_weights, "No rank holds another weight shard", "holds? other weights"),
    ):
        who = (
            f"{number} of {both} ranks"
            if number < both
            else f"All {both} ranks"
            if both > 1
            else "The one rank"
        )
        assert (none in verdict) == (number == 0)
        assert bool(re.search(f"(?:^|\\. ){who} {some}", verdict)) == (number > 0)


def of_demo(**changes: object) -> Job:
    return job(demo(**changes))


def verdict(a: Job, b: Job) -> str:
    return compare(a, b).verdict


def test_the_same_layout() -> None:
    same = "Same layout: nothing moves. All 8 ranks keep their lane, part of a row and weights."
    assert verdict(of_demo(), of_demo()) == f"{same} {RESHAPE_BOTH}"
    one = GTPParallelLayout.resolve(world_size=1)
    assert verdict(job(one), job(one)) == (
        "Same layout: nothing moves. The one rank keeps its lane, part of a row and weights."
    )


def test_an_order_that_makes_no_difference() -> None:
    a, b = (
        of_demo(context_parallel_size=1, rank_order=order) for order in ("tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp")
    )
    assert verdict(a, b) == (
        "Same layout: nothing moves. All 8 ranks keep their lane, part of a row and weights. The rank orders"
        " tp-gtp-cp-dp-pp and tp-cp-gtp-dp-pp number the ranks alike with these sizes."
    )


def test_same_numbers_in_another_order() -> None:
    assert verdict(of_demo(), of_demo(rank_order="tp-cp-gtp-dp-pp")) == (
        "The sizes are the same, and the ranks are numbered in another order (tp-gtp-cp-dp-pp in A,"
        " tp-cp-gtp-dp-pp in B). 4 of 8 ranks train on other data: 4 change lane and 4 take another part of a"
        " row. 4 of 8 ranks hold other weights, as many as before (1/4 of them). The groups of gtp_remat,"
        " tp_gtp_remat, replica, context, batch and lane have other ranks; those of gtp_remat_replica stay."
        " No group leaves an NVLink domain in either. A plain reshape of the ranks to (PP, -1, runtime CP,"
        " TP) gives the lanes in B, but puts 4 ranks in the wrong lane in A."
    )


def test_same_weights_and_other_lanes() -> None:
    a, b = (job(demo(context_parallel_size=size), batch=(8, 1)) for size in (2, 1))
    assert verdict(a, b).startswith(
        "All 8 ranks train on other data: B has 4 lanes instead of 2, of 2 rows a step instead of 4, and each"
        " row is cut over 2 ranks instead of 4. No rank holds another weight shard: each stores 1/4 of the"
        " weights in both. The groups of context, batch and lane have other ranks; those of gtp_remat,"
        " tp_gtp_remat, replica and gtp_remat_replica stay."
    )


def test_same_lanes_and_other_shards() -> None:
    # Plain data parallelism against weights cut over all ranks: 8 lanes in both.
    a, b = (GTPParallelLayout.resolve(world_size=8, tensor_parallel_num_weight_shards=w) for w in (1, 8))
    found = compare(
        job(a, batch=(8, 1), length=256, model=True), job(b, batch=(8, 1), length=256, model=True)
    )
    assert found.parameter_bytes == (12786432, 1604352)
    assert found.verdict.startswith(
        "No rank trains on other data: there are 8 lanes and no row is cut, in both. All 8 ranks hold other"
        " weights: 1/8 of them each instead of all. Stored parameters take 1.60 MB a rank instead of"
        " 12.8 MB. The groups of gtp_remat, tp_gtp_remat and replica have other ranks; those of batch and"
        " gtp_remat_replica stay. A rank sends up to "
    )


def test_other_links_only() -> None:
    layout = demo()
    far = Topology.regular(layout, nvlink_domain_size=4)
    a, b = job(layout), job(layout, topology=far)
    assert verdict(a, b) == (
        "No rank trains on other data: there are 2 lanes and each row is cut over 4 ranks, in both. No rank"
        " holds another weight shard: each stores 1/4 of the weights in both. Every rank talks to the same"
        " ranks. 4 of 8 ranks stand in another NVLink domain. What leaves NVLink domains changes: 4 of 4"
        " replica groups in B, 0 of 4 in A; 1 of 1 gtp_remat_replica groups in B, 0 of 1 in A; 2 of 2 context"
        f" groups in B, 0 of 2 in A; and so for 2 other kinds of group. {RESHAPE_BOTH}"
    )


def test_bytes_over_links() -> None:
    layout = demo()
    near, far = (
        job(
            layout,
            batch=(8, 4),
            length=256,
            model=True,
            topology=Topology.regular(layout, nvlink_domain_size=size),
        )
        for size in (8, 4)
    )
    # Each of the 4 replica pairs sends 3,194,880 bytes either way.
    assert (
        "4 of 4 replica groups in B, 0 of 4 in A (up to 12.8 MB of a step leave a domain, instead of 0 B)"
    ) in verdict(near, far)


def test_bytes_with_pipeline_stages_are_those_of_the_stage_that_stores_most() -> None:
    a, b = (
        job(
            GTPParallelLayout.resolve(world_size=16, pipeline_model_parallel_size=stages),
            batch=(16, 1),
            length=256,
            model=True,
        )
        for stages in (1, 4)
    )
    found = compare(a, b)
    embedding, layer, norm = 4096 * 192, (2 * 192 + 2 * 96 + 3 * 512) * 192, 192
    assert found.parameter_bytes == (
        4 * (2 * embedding + 4 * layer + 9 * norm),
        4 * (embedding + layer + 3 * norm),  # the last one, with the head and the last norm
    )
    assert "Stored parameters take 4.77 MB a rank instead of 12.8 MB." in found.verdict


def test_unknown_bytes_are_no_change() -> None:
    # Replica groups of 16 ranks cross in both; the bytes of B are not known, as it has no model.
    layout = GTPParallelLayout.resolve(world_size=16)
    a, b = (job(layout, batch=(16, 1), length=256, model=known) for known in (True, False))
    found = compare(a, b)
    assert [(link.crossing_a, link.crossing_b) for link in found.links if link.group == "replica"] == [(1, 1)]
    assert not any(link.differs for link in found.links)
    assert "1 of 1" not in found.verdict
    assert found.verdict.startswith("Same layout: nothing moves.")


def test_the_cut_moves_between_tp_and_gtp_remat() -> None:
    a, b = (
        GTPParallelLayout.resolve(
            world_size=8, tensor_model_parallel_size=tp, tensor_parallel_num_weight_shards=4
        )
        for tp in (4, 2)
    )
    assert (
        "All 8 ranks hold other weights: 1/4 of them as before, cut 2 x 2 x 1 instead of 4 x 1 x 1"
        " (TP x GTP_remat x PP)."
    ) in verdict(job(a), job(b))


def test_sequence_parallelism_alone() -> None:
    a, b = (
        GTPParallelLayout.resolve(world_size=8, tensor_model_parallel_size=4, sequence_parallel=on)
        for on in (True, False)
    )
    assert verdict(job(a), job(b)) == (
        "No rank trains on other data: there are 2 lanes and no row is cut, in both. No rank holds another"
        " weight shard: each stores 1/4 of the weights in both. Sequence parallelism is on in A only: there"
        " each TP rank has its part of the tokens in norms and residuals. Every rank talks to the same ranks."
        " No group leaves an NVLink domain in either."
    )


def test_worlds_of_different_size() -> None:
    found = compare(of_demo(), of_demo(world_size=16))
    assert (found.only_a, found.only_b) == (0, 8)
    assert found.verdict.startswith(
        "A has 8 ranks and B 16; the 8 that are in both are compared. All 8 ranks train on other data: B has"
        " 4 lanes instead of 2. No rank holds another weight shard"
    )
    assert "those of gtp_remat, tp_gtp_remat, context and lane stay" in found.verdict
    apart = compare(of_demo(), of_demo(rank_offset=8))
    assert apart.verdict == f"No rank is in both: A has ranks 0 to 7, B 8 to 15. {RESHAPE_BOTH}"


def test_other_batches() -> None:
    a, b = job(demo(), batch=(8, 2), length=256), job(demo(), batch=(16, 4), length=512)
    assert (
        "The batch differs: a step has 16 rows instead of 8, a microbatch has 4 rows a lane instead of 2, a"
        " row has 512 tokens instead of 256."
    ) in verdict(a, b)


def test_unknown_domains_are_said() -> None:
    layout = demo()
    some = job(layout, topology=Topology.listed(layout, [[0, 1, 2, 3]]))
    found = compare(job(layout), some)
    assert found.ranks.counts["domain"] == 0
    assert "The domain of some ranks is not known in B." in found.verdict


def test_notes_end_the_verdict() -> None:
    found = compare(of_demo(), of_demo(), notes=["The driver of B calls 2 ranks."])
    assert found.verdict.endswith(f"{RESHAPE_BOTH} The driver of B calls 2 ranks.")


def test_settings_with_their_sources() -> None:
    sources = {"parallel.context_parallel_size": "file"}
    found = compare(job(demo(), sources=sources), job(demo(context_parallel_size=1), batch=(8, 1)))
    rows = {row.name: (row.a, row.source_a, row.b, row.source_b) for row in found.settings}
    assert rows == {
        "context_parallel_size": ("2", "file", "1", ""),
        "global_batch_size": (None, "", "8", ""),
        "micro_batch_size": (None, "", "1", ""),
    }


def test_plain_data() -> None:
    printed = json.loads(
        json.dumps(comparison_object(compare(of_demo(), of_demo(rank_order="tp-cp-gtp-dp-pp"))))
    )
    assert printed["changed"] == {
        "lane": 4, "context": 4, "replica": 4, "domain": 0, "node": 0, "shard": 4,
        "rows": 4, "tokens": 4, "weights": 4,
    }  # fmt: skip
    assert [row["rank"] for row in printed["ranks"]] == [2, 3, 4, 5]
    assert printed["ranks"][0]["lane"] == {"a": 1, "b": 0}
    assert printed["groups"]["gtp_remat"]["disappear"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert printed["groups"]["gtp_remat"]["appear"] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert printed["ranks_misplaced_by_plain_reshape"] == {"a": 4, "b": 0}
    assert printed["settings"]["rank_order"]["b"] == "tp-cp-gtp-dp-pp"


def test_settings_row_under_row() -> None:
    order = "tp-cp-gtp-dp-pp"
    changed = demo(rank_order=order, tensor_parallel_num_weight_shards=2)
    a, b = (
        job(layout, sources={"parallel.rank_order": source})
        for layout, source in ((demo(), "derived"), (changed, "file"))
    )
    lines = shown(compare(a, b)).splitlines()
    start = lines.index("Settings that differ")
    assert lines[start + 1 : start + 6] == [
        " setting                                         value  source",
        " tensor_parallel_num_weight_shards  A                4",
        "                                    B                2",
        " rank_order                         A  tp-gtp-cp-dp-pp  derived",
        "                                    B  tp-cp-gtp-dp-pp  file",
    ]


def shown(found: Comparison, width: int = 80) -> str:
    made = console(width)
    print_comparison(found, console=made)
    return text(made)


def test_groups_that_a_job_does_not_have_are_none() -> None:
    layouts = (demo(), GTPParallelLayout.resolve(world_size=8))
    a, b = (
        job(each, batch=(8, 1), length=256, model=True, topology=Topology.regular(each, nvlink_domain_size=2))
        for each in layouts
    )
    lines = [line.split() for line in shown(compare(a, b)).splitlines()]
    groups = next(line for line in lines if line[:2] == ["gtp_remat", "2"] and "x" in line)
    assert groups == ["gtp_remat", "2", "x", "4", "none", "2", "0"]
    links = next(line for line in lines if line[:4] == ["gtp_remat", "2", "of", "2"])
    assert links[4] == "none"
    assert links[-1] == "none"


def test_ranks_row_under_row() -> None:
    lines = shown(compare(of_demo(), of_demo(rank_order="tp-cp-gtp-dp-pp"))).splitlines()
    start = lines.index("Ranks that differ")
    assert lines[start + 1 : start + 6] == [
        "                             weight",
        " rank     lane  context  tp   shard  replica  stage  domain",
        "    2  A     1        0   0       2        0      0       0",
        "       B    0*       2*   0      0*       1*      0       0",
        "    3  A     1        1   0       3        0      0       0",
    ]
    caption = " ".join(" ".join(lines[start + 11 : start + 13]).split())
    assert caption == (
        "4 ranks that differ, of 8 in both; * differs from A; ranks that change: lane 4, context 4,"
        " replica 4, shard 4"
    )


BIG = {"world_size": 16384, "tensor_model_parallel_size": 8, "tensor_parallel_num_weight_shards": 512,
       "tensor_parallel_num_sequence_shards": 64, "context_parallel_size": 8}  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120])
def test_big_worlds_fit_and_are_cut_short(width: int) -> None:
    orders = ("tp-gtp-cp-dp-pp", "tp-cp-gtp-dp-pp")
    a, b = (job(GTPParallelLayout.resolve(**BIG, rank_order=order)) for order in orders)  # type: ignore[arg-type]
    page = shown(compare(a, b), width)
    assert max(map(len, page.splitlines())) <= width
    assert "the first 32 of 14336 ranks that differ, of 16384 in both" in " ".join(page.split())
    assert len(re.findall(r"^ +\d+  A ", page, re.MULTILINE)) == MAX_RANKS


@given(**TWO)
@settings(max_examples=30, deadline=None)
def test_tables_fit(a: Case, b: Case, size_a: int, size_b: int) -> None:
    sources = {f"parallel.{name}": "derived" for name in Case(1, 1, 1, 1, 1, 1).layout().sizes}
    one, other = (replace(made, sources=sources) for made in (placed(a, size_a), placed(b, size_b)))
    page = shown(compare(one, other))
    assert max(map(len, page.splitlines())) <= 80
    assert "…" not in page
