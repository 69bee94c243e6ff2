"""A driver's own idea of the ranks, beside the lanes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import DRIVER_AXES, Driver, DriverOutcome, GTPParallelLayout, compare_driver
from tests.layout.brute import CASES, ORDERS, Case

FEW = settings(max_examples=80, deadline=None)
SWAPPED = "tp-cp-gtp-dp-pp"


def layout_of(world: int, **settings: object) -> GTPParallelLayout:
    short = {
        "tp": "tensor_model_parallel_size",
        "w": "tensor_parallel_num_weight_shards",
        "q": "tensor_parallel_num_sequence_shards",
        "cp": "context_parallel_size",
        "pp": "pipeline_model_parallel_size",
    }
    named = {short.get(name, name): value for name, value in settings.items()}
    return GTPParallelLayout.resolve(world_size=world, **named)  # type: ignore[arg-type]


L24 = layout_of(24, tp=4, w=12)
TRAP = layout_of(8, cp=2, w=2)
SHARED = layout_of(8, w=4, q=2)  # S 2, B 2, D 2: 4 lanes


def compare(spelling: str, layout: GTPParallelLayout) -> DriverOutcome:
    return compare_driver(Driver.parse(spelling, layout), layout)


def brute_lanes(sizes: list[int], split: list[int]) -> list[int]:
    """For ranks counted over axes of these sizes, outermost first, the index over the axes in ``split``."""
    lanes = []
    for at in product(*(range(size) for size in sizes)):
        lane = 0
        for axis in split:
            lane = lane * sizes[axis] + at[axis]
        lanes.append(lane)
    return lanes


@pytest.mark.parametrize(
    ("spelling", "sizes"),
    [
        (
            "pp,-1,cp,tp",
            {"pipeline_parallel": 1, "data_parallel": 6, "context_parallel": 1, "tensor_parallel": 4},
        ),
        ("reshape(pp, -1, cp, tp)", dict(zip(DRIVER_AXES, (1, 6, 1, 4), strict=True))),
        ("np.arange(24).reshape((PP, -1, CP, TP,))", dict(zip(DRIVER_AXES, (1, 6, 1, 4), strict=True))),
        ("[1, -1, 1, 4]", dict(zip(DRIVER_AXES, (1, 6, 1, 4), strict=True))),
        ("1, 6, 1, 4", dict(zip(DRIVER_AXES, (1, 6, 1, 4), strict=True))),
        ("2,-1,4", {"pipeline_parallel": 2, "data_parallel": 3, "tensor_parallel": 4}),
        ("-1,2,tp", {"data_parallel": 3, "context_parallel": 2, "tensor_parallel": 4}),
        ("pp,-1,3,cp,tp", {"pipeline_parallel": 1, "data_parallel": 2, "gtp": 3}),
        ("pp,dp,gtp,cp,tp", {"pipeline_parallel": 1, "data_parallel": 2, "gtp": 3, "context_parallel": 1}),
        (
            "pipeline_parallel=1,data_parallel=6,context_parallel=1,tensor_parallel=4",
            dict(zip(DRIVER_AXES, (1, 6, 1, 4), strict=True)),
        ),
        ("pp=1, dp=-1, gtp=gtp, cp=runtime_cp, tp=tp", {"data_parallel": 2, "gtp": 3, "tensor_parallel": 4}),
        ("data_parallel,tensor_parallel", {"data_parallel": 6, "tensor_parallel": 4}),
        ("dp=6,tp=-1", {"data_parallel": 6, "tensor_parallel": 4}),
    ],
)
def test_spellings(spelling: str, sizes: dict[str, int]) -> None:
    driver = Driver.parse(spelling, L24)
    assert sizes.items() <= driver.sizes.items()
    assert driver.spelling == spelling
    assert driver.ranks.shape == tuple(driver.sizes.values())
    assert driver.ranks.reshape(-1).tolist() == list(range(24))


@pytest.mark.parametrize(
    ("spelling", "cp_is"),
    [
        ("pp,-1,cp,tp", "configured"),
        ("pp,-1,runtime_cp,tp", "runtime"),
        ("dp=-1,cp=runtime_cp,tp=1", "runtime"),
        ("dp=-1,context_parallel=cp", "configured"),
        ("pp,-1,2,tp", "given"),
        ("-1,tp", "given"),
    ],
)
def test_what_cp_was_said_to_be(spelling: str, cp_is: str) -> None:
    assert Driver.parse(spelling, SHARED).cp_is == cp_is


def test_cp_is_the_configured_degree_and_runtime_cp_the_runtime_one() -> None:
    layout = layout_of(32, w=4, q=2, cp=2)
    assert Driver.parse("pp,-1,cp,tp", layout).sizes["context_parallel"] == 2
    assert Driver.parse("pp,-1,runtime_cp,tp", layout).sizes["context_parallel"] == 4
    assert Driver.parse("pp,-1,runtime_cp,tp", layout).sizes["data_parallel"] == 8


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        (
            "pp,-1,ep,tp",
            "driver 'pp,-1,ep,tp': 'ep' is not known;"
            " use pp, dp, cp, runtime_cp, tp, gtp, -1 or a whole number",
        ),
        (
            "expert=2,dp=-1",
            "driver 'expert=2,dp=-1': there is no axis 'expert'; its axes are pipeline_parallel,"
            " data_parallel, context_parallel, tensor_parallel, gtp",
        ),
        (
            "pp,-1,cp,runtime_cp,tp",
            "driver 'pp,-1,cp,runtime_cp,tp': the axis context_parallel comes 2 times (cp and runtime_cp);"
            " keep one",
        ),
        ("pp,dp,-1,tp", "driver 'pp,dp,-1,tp': the axis data_parallel comes 2 times (dp and -1); keep one"),
        ("pp,cp,tp", "driver 'pp,cp,tp' has no data axis; write -1 where it stands, as in pp,-1,cp,tp"),
        (
            "-1,tp=-1",
            "driver '-1,tp=-1': only one axis can be -1, not data_parallel and tensor_parallel;"
            " try -1 for data_parallel alone",
        ),
        (
            "pp,-1,cp,5",
            "driver 'pp,-1,cp,5': world_size 24 is not a multiple of 5 = pp 1 x cp 1 x tensor_parallel 5;"
            " try tensor_parallel 4 or 6",
        ),
        (
            "data_parallel=5,tensor_parallel=4",
            "driver 'data_parallel=5,tensor_parallel=4': world_size 24 is not 20 = data_parallel 5"
            " x tensor_parallel 4; try data_parallel 6",
        ),
        (
            "pp,dp,cp,tp",
            "driver 'pp,dp,cp,tp': world_size 24 is not 8 = pp 1 x dp 2 x cp 1 x tp 4;"
            " dp is data_parallel_size 2, and there are 6 lanes; try -1",
        ),
        ("pp,-1,0", "driver 'pp,-1,0': an axis has a size of at least 1, or -1 for the rest, not 0"),
        ("-1,tp=-4", "driver '-1,tp=-4': an axis has a size of at least 1, or -1 for the rest, not -4"),
        (
            "2,2,-1",
            "driver '2,2,-1': no axis is left that the number 2 could be; give it a name,"
            " as in context_parallel=2",
        ),
        ("", "driver '': '' is not known; use pp, dp, cp, runtime_cp, tp, gtp, -1 or a whole number"),
    ],
)
def test_spellings_that_are_refused(spelling: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        Driver.parse(spelling, L24)
    assert str(refusal.value) == message


def test_gtp_and_runtime_cp_count_the_sequence_shards_twice() -> None:
    layout = layout_of(4, w=4, q=2)
    with pytest.raises(UserError) as refusal:
        Driver.parse("pp,-1,gtp,runtime_cp,tp", layout)
    assert str(refusal.value) == (
        "driver 'pp,-1,gtp,runtime_cp,tp': world_size 4 is not a multiple of 8"
        " = pp 1 x gtp 4 x runtime_cp 2 x tp 1;"
        " gtp and runtime_cp both count the 2 GTP sequence shards; try cp"
    )


def test_24_ranks_tp_4_w_12_agree_with_6_lanes() -> None:
    outcome = compare("pp,-1,cp,tp", L24)
    assert outcome.agrees
    assert outcome.num_lanes == outcome.num_driver_lanes == 6
    assert outcome.lanes_are == ("data_parallel",)
    assert (outcome.wrong_ranks, outcome.mistake) == ((), "")
    assert outcome.describe() == "driver pp,-1,cp,tp: data_parallel is the 6 lanes"


def test_five_axes_are_the_lanes_together() -> None:
    outcome = compare("pp,-1,gtp,cp,tp", L24)
    assert outcome.agrees
    assert outcome.lanes_are == ("data_parallel", "gtp")
    assert outcome.num_driver_lanes == 6
    assert outcome.describe() == (
        "driver pp,-1,gtp,cp,tp: data_parallel x gtp is the 6 lanes;"
        " a call has to split data_parallel and gtp together"
    )


def test_the_reshape_trap_of_the_default_order() -> None:
    outcome = compare("pp,-1,cp,tp", TRAP)
    assert not outcome.agrees
    assert outcome.wrong_ranks == (1, 2, 5, 6)
    assert outcome.right_lanes == (1, 0, 3, 2)
    assert outcome.driver_lanes == (0, 1, 2, 3)
    assert outcome.num_lanes == outcome.num_driver_lanes == 4
    assert outcome.mistake == (
        "ranks of a lane are not neighbours in rank order tp-gtp-cp-dp-pp: with context_parallel_size 2 and"
        " 2 GTP batch shards, each of the 2 parts of a lane is followed by those of 1 other lane;"
        " use the right axes, or rank order tp-cp-gtp-dp-pp"
    )
    assert outcome.right_axes == (
        "np.arange(8).reshape(1, 2, 2, 2, 1, 1).transpose(0, 1, 3, 2, 4, 5).reshape(1, 4, 2, 1)\n"
        "# pipeline_parallel 1, data_parallel 4, context_parallel 2, tensor_parallel 1\n"
        "# lane 0: ranks 0, 2\n# lane 1: ranks 1, 3\n# lane 2: ranks 4, 6\n# lane 3: ranks 5, 7"
    )
    assert outcome.describe().startswith(
        "driver pp,-1,cp,tp puts 4 of 8 ranks in the wrong lane: rank 1 in lane 0 instead of 1,"
        " rank 2 in lane 1 instead of 0, rank 5 in lane 2 instead of 3, ...; ranks of a lane are not"
    )
    assert compare("pp,-1,cp,tp", layout_of(8, cp=2, w=2, rank_order=SWAPPED)).agrees


@pytest.mark.parametrize("order", ORDERS)
def test_the_configured_cp_counts_twice_too_many_lanes(order: str) -> None:
    layout = layout_of(8, w=4, q=2, rank_order=order)
    outcome = compare("pp,-1,cp,tp", layout)
    assert (outcome.num_driver_lanes, outcome.num_lanes) == (8, 4)
    assert outcome.wrong_ranks == (1, 2, 3, 4, 5, 6, 7)
    assert outcome.mistake == (
        "it counts 2 times too many lanes: cp is the configured degree 1, attention runs over"
        " runtime_cp 2 = 1 x 2 GTP sequence shards; write pp,-1,runtime_cp,tp"
    )
    assert "in the wrong lane and counts 8 lanes instead of 4: rank 1 in lane 1" in outcome.describe()
    right = compare("pp,-1,runtime_cp,tp", layout)
    assert right.agrees
    assert right.num_driver_lanes == 4


def test_both_mistakes_at_once_are_both_said() -> None:
    mistake = compare("pp,-1,cp,tp", layout_of(16, w=4, q=2, cp=2)).mistake
    assert "GTP sequence shards; ranks of a lane are not neighbours" in mistake
    assert mistake.endswith("; use the right axes, or rank order tp-cp-gtp-dp-pp with pp,-1,runtime_cp,tp")


@pytest.mark.parametrize(
    ("spelling", "layout", "mistake"),
    [
        (
            "dp=2,tp=12",
            L24,
            "it counts the GTP_remat ranks as one lane: tensor_parallel 12 is"
            " tensor_parallel_num_weight_shards = TP 4 x GTP_remat 3,"
            " and only the 4 ranks of TP and GTP sequence shards share a lane;"
            " write pp,-1,runtime_cp,tp",
        ),
        (
            "pp=2,dp=3,tp=4",
            L24,
            "pipeline_parallel is 2, and pipeline_model_parallel_size is 1; write pp,-1,runtime_cp,tp",
        ),
        (
            "tp,-1",
            L24,
            "the axes stand in another order than the ranks are numbered; write pp,-1,runtime_cp,tp",
        ),
        (
            "pp,-1,gtp,cp,tp",
            TRAP,
            "the axes stand in another order than rank order tp-gtp-cp-dp-pp numbers the ranks;"
            " write pp,-1,cp,gtp,tp",
        ),
        (
            "pp,-1,cp,gtp,tp",
            layout_of(8, cp=2, w=2, rank_order=SWAPPED),
            "the axes stand in another order than rank order tp-cp-gtp-dp-pp numbers the ranks;"
            " write pp,-1,gtp,cp,tp",
        ),
        (
            "pp,-1,gtp,cp,tp",
            SHARED,
            "gtp counts all 4 GTP_remat ranks, and every 2 of them share a sequence: data_parallel alone is"
            " 2, data_parallel x gtp is 8, and there are 4 lanes; write pp,-1,runtime_cp,tp",
        ),
        (
            "-1,gtp=6,tp=2",
            L24,
            "data_parallel x gtp is 2 x 6 = 12, and there are 6 lanes = data_parallel_size 2"
            " x 3 GTP batch shards; write pp,-1,cp,gtp,tp",
        ),
        (
            "tp,cp,-1,pp",  # the order is wrong too: another word for cp would not be enough
            SHARED,
            "it counts 2 times too many lanes: cp is the configured degree 1, attention runs over runtime_cp"
            " 2 = 1 x 2 GTP sequence shards; write pp,-1,runtime_cp,tp",
        ),
        (
            "-1,tp",
            SHARED,
            "it counts 2 times too many lanes: it has no context_parallel axis, attention runs over"
            " runtime_cp 2 = 1 x 2 GTP sequence shards; write pp,-1,runtime_cp,tp",
        ),
        (
            "-1,gtp",
            layout_of(8, w=4, q=4, cp=2, rank_order=SWAPPED),
            "gtp counts all 4 GTP_remat ranks, and all of them share a sequence: data_parallel alone is 2,"
            " data_parallel x gtp is 8, and there is 1 lane; write pp,-1,runtime_cp,tp",
        ),
    ],
)
def test_mistakes_that_are_named(spelling: str, layout: GTPParallelLayout, mistake: str) -> None:
    outcome = compare(spelling, layout)
    assert not outcome.agrees
    assert outcome.mistake == mistake


def test_another_cut_that_is_the_lanes_rank_by_rank_agrees() -> None:
    assert compare("pp,-1,gtp=6,tp", L24).lanes_are == ("data_parallel", "gtp")
    assert compare("pp,-1,gtp=2,runtime_cp,tp", SHARED).lanes_are == ("data_parallel", "gtp")


@FEW
@given(
    case=CASES, spelling=st.sampled_from(["tp,cp,-1,pp", "-1,tp", "-1,gtp,tp", "pp,-1,cp,4", "tp,-1", "-1"])
)
def test_a_remedy_is_enough(case: Case, spelling: str) -> None:
    layout = case.layout()
    try:
        mistake = compare(spelling, layout).mistake
    except UserError:
        return  # no driver at all
    _, order, changed = mistake.rpartition("; use the right axes, or rank order ")
    if order:
        order, _, better = changed.partition(" with ")
        assert compare(better or spelling, replace(layout, rank_order=order)).agrees
        assert not compare("pp,-1,runtime_cp,tp", layout).agrees
    elif mistake:
        assert compare(mistake.rpartition("; write ")[2], layout).agrees


def test_what_a_mistake_says_to_write_is_right() -> None:
    assert compare("pp,-1,cp,gtp,tp", TRAP).lanes_are == ("data_parallel", "gtp")
    assert compare("pp,-1,gtp,cp,tp", layout_of(8, cp=2, w=2, rank_order=SWAPPED)).agrees


def test_big_worlds_show_a_few_lanes_and_all_wrong_ranks() -> None:
    layout = layout_of(1024, cp=2, w=8)
    outcome = compare("pp,-1,cp,tp", layout)
    lines = outcome.right_axes.splitlines()
    assert lines[2:] == [
        "# lane 0: ranks 0, 8",
        "# lane 1: ranks 1, 9",
        "# lane 2: ranks 2, 10",
        "# ...",
        "# lane 511: ranks 1015, 1023",
    ]
    lanes = brute_lanes([512, 2], [0])
    wrong = [rank for rank in layout.ranks if layout.lane(rank) != lanes[rank]]
    assert list(outcome.wrong_ranks) == wrong
    assert len(outcome.describe()) < 600


@FEW
@given(case=CASES)
def test_runtime_cp_is_wrong_exactly_when_cp_and_batch_shards_meet_in_the_default_order(case: Case) -> None:
    layout = case.layout()
    outcome = compare("pp,-1,runtime_cp,tp", layout)
    assert outcome.agrees == (not (case.order == ORDERS[0] and case.cp > 1 and case.gtp_batch > 1))
    lanes = brute_lanes([case.pp, case.dp * case.gtp_batch, case.cp * case.gtp_seq, case.tp], [1])
    right = [case.indices(at)["lane"] for at in case.coordinates().values()]
    rows = [
        (rank, lane, given)
        for rank, lane, given in zip(case.coordinates(), right, lanes, strict=True)
        if lane != given
    ]
    assert list(zip(outcome.wrong_ranks, outcome.right_lanes, outcome.driver_lanes, strict=True)) == rows
    assert outcome.num_driver_lanes == outcome.num_lanes == case.dp * case.gtp_batch
    assert bool(outcome.mistake) == bool(rows)


@FEW
@given(case=CASES)
def test_the_configured_cp_counts_s_times_too_many(case: Case) -> None:
    outcome = compare("pp,-1,cp,tp", case.layout())
    assert outcome.num_driver_lanes == outcome.num_lanes * case.gtp_seq
    if case.gtp_seq > 1:
        assert outcome.mistake.startswith(f"it counts {case.gtp_seq} times too many lanes: cp is the")


@FEW
@given(case=CASES)
def test_data_and_gtp_together(case: Case) -> None:
    """In the order in which the ranks are numbered: the lanes exactly when nobody shares a sequence."""
    inner = ["cp", "gtp"] if case.order == ORDERS[0] else ["gtp", "cp"]
    remat = case.gtp_seq * case.gtp_batch
    outcome = compare(",".join(["pp", "-1", *inner, "tp"]), case.layout())
    if remat == 1:
        assert outcome.lanes_are == ("data_parallel",)
    elif case.gtp_seq == 1:
        assert outcome.lanes_are == ("data_parallel", "gtp")
    sizes = [case.pp, case.dp, *((case.cp, remat) if inner[0] == "cp" else (remat, case.cp)), case.tp]
    right = [case.indices(at)["lane"] for at in case.coordinates().values()]
    together = brute_lanes(sizes, [1, 2 + inner.index("gtp")])
    assert outcome.agrees == (right in (brute_lanes(sizes, [1]), together))


@FEW
@given(case=CASES)
def test_the_right_axes_can_be_pasted(case: Case) -> None:
    layout = case.layout()
    pasted = eval(compare("pp,-1,cp,tp", layout).right_axes, {"np": np})
    assert pasted.tolist() == layout.driver_axes().tolist()


@FEW
@given(case=CASES)
def test_the_layouts_own_axes_agree(case: Case) -> None:
    layout = case.layout()
    driver = Driver.of_layout(layout)
    assert driver.names == DRIVER_AXES
    outcome = compare_driver(driver, layout)
    assert outcome.lanes_are == ("data_parallel",)
    assert outcome.num_driver_lanes == layout.batch_parallel_size
