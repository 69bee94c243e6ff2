"""Whom a driver's call reaches."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.errors import UserError
from rankloom.layout import Call, Driver, Reach, reach
from tests.layout.brute import CASES, Case
from tests.layout.test_driver import L24, TRAP, layout_of

FEW = settings(max_examples=80, deadline=None)
FOUR = "pp,-1,cp,tp"
FIVE = "pp,-1,gtp,cp,tp"
LOGPROBS = "get_logprobs: shard=data_parallel replicate=context_parallel,tensor_parallel,pipeline_parallel"
READ = Call(
    "get_logprobs", ("data_parallel",), ("context_parallel", "tensor_parallel", "pipeline_parallel"), ()
)


def reached(call: str, driver: str, layout: object = L24) -> Reach:
    return reach(Call.parse(call), Driver.parse(driver, layout), layout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        LOGPROBS,
        "get_logprobs: replicate=context_parallel, tensor_parallel , pipeline_parallel shard=data_parallel",
        "get_logprobs:shard=dp replicate=cp,tp,pp leader_only=",
        "get_logprobs: in_sharded_axes=data_parallel replicate_on_axes=context_parallel,tensor_parallel,pp",
        'get_logprobs: in_sharded_axes=["data_parallel"], replicate_on_axes=["cp", "tp", "pp"]',
    ],
)
def test_spellings(text: str) -> None:
    assert Call.parse(text) == READ
    assert Call.parse(Call.parse(text).describe()) == READ
    assert READ.describe() == LOGPROBS


def test_leader_only_and_a_broadcast() -> None:
    assert Call.parse("save: leader_only=gtp,dp") == Call("save", (), (), ("gtp", "data_parallel"))
    assert Call.parse("ping:") == Call("ping", (), (), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "get_logprobs shard=dp",
            "call 'get_logprobs shard=dp' cannot be read;"
            " write NAME: shard=AXES replicate=AXES leader_only=AXES",
        ),
        (
            ": shard=dp",
            "call ': shard=dp' cannot be read; write NAME: shard=AXES replicate=AXES leader_only=AXES",
        ),
        ("f: dp", "call 'f: dp' cannot be read; write NAME: shard=AXES replicate=AXES leader_only=AXES"),
        (
            "f: split=dp",
            "call f: 'split' is not known; write NAME: shard=AXES replicate=AXES leader_only=AXES",
        ),
        ("f: shard=dp shard=tp", "call f: shard is given twice; name all its axes in one, as in shard=a,b"),
        (
            "f: shard=dp in_sharded_axes=tp",
            "call f: in_sharded_axes is given twice; name all its axes in one, as in in_sharded_axes=a,b",
        ),
        (
            "f: shard=dp replicate=data_parallel",
            "call f: data_parallel stands in shard and in replicate;"
            " an axis is split, copied or called at index 0 only, one of the three",
        ),
        (
            "f: replicate=tp leader_only=tp",
            "call f: tensor_parallel stands in replicate and in leader_only;"
            " an axis is split, copied or called at index 0 only, one of the three",
        ),
        ("f: shard=dp,dp", "call f: data_parallel stands twice in shard; name it once"),
    ],
)
def test_calls_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        Call.parse(text)
    assert str(refusal.value) == message


def test_an_axis_that_the_driver_does_not_have() -> None:
    with pytest.raises(UserError) as refusal:
        reached("f: shard=dp,gtp", FOUR)
    assert str(refusal.value) == (
        "call f: the driver pp,-1,cp,tp has no axis 'gtp';"
        " its axes are pipeline_parallel, data_parallel, context_parallel, tensor_parallel"
    )


def test_four_axes_reach_all_24() -> None:
    outcome = reached(LOGPROBS, FOUR)
    assert outcome.reached == tuple(range(24))
    assert (outcome.not_reached, outcome.not_named, outcome.wrong_pieces) == ((), (), ())
    assert outcome.num_pieces == 6
    assert outcome.pieces.tolist() == [rank // 4 for rank in range(24)]
    assert not outcome.partial
    assert outcome.describe() == "get_logprobs reaches all 24 ranks with 6 pieces over data_parallel"


def test_five_axes_reach_8_of_24() -> None:
    outcome = reached(LOGPROBS, FIVE)
    assert outcome.reached == (0, 1, 2, 3, 12, 13, 14, 15)
    assert outcome.not_reached == (*range(4, 12), *range(16, 24))
    assert len(outcome.not_reached) == 16
    assert outcome.not_named == ("gtp",)
    assert outcome.partial
    assert outcome.num_pieces == 2
    assert outcome.wrong_pieces == (12, 13, 14, 15)
    assert outcome.describe() == (
        "get_logprobs reaches 8 of 24 ranks with 2 pieces over data_parallel; 16 never called: 4-11, 16-23;"
        " it does not say whether to split, copy or call index 0 only of gtp 3;"
        " 4 of 24 ranks get a piece that is not their lane: rank 12 gets piece 1 and is in lane 3;"
        " try get_logprobs: shard=data_parallel,gtp"
        " replicate=pipeline_parallel,context_parallel,tensor_parallel"
    )
    repaired = reached(outcome.remedy, FIVE)
    assert repaired.reached == tuple(range(24))
    assert repaired.wrong_pieces == ()


def test_leaders_on_purpose() -> None:
    outcome = reached("load: shard=dp leader_only=pp,cp,tp", FOUR)
    assert outcome.reached == (0, 4, 8, 12, 16, 20)
    assert not outcome.partial
    assert outcome.describe() == (
        "load reaches 6 of 24 ranks with 6 pieces over data_parallel;"
        " 18 left out on purpose: 1-3, 5-7, 9-11, 13-15, 17-19, 21-23"
    )


def test_a_broadcast_has_one_piece_and_no_lane() -> None:
    outcome = reached("stop: replicate=pp,dp,cp,tp", FOUR)
    assert outcome.num_pieces == 1
    assert outcome.pieces.tolist() == [0] * 24
    assert outcome.wrong_pieces == ()
    assert outcome.describe() == "stop reaches all 24 ranks with 1 piece for everybody"


def test_pieces_that_are_not_lanes() -> None:
    outcome = reached(LOGPROBS, FOUR, TRAP)
    assert outcome.wrong_pieces == (1, 2, 5, 6)
    assert outcome.right_lanes == (1, 0, 3, 2)
    assert outcome.remedy == ""
    assert not outcome.partial


def test_ranks_that_start_later() -> None:
    outcome = reached(LOGPROBS, FIVE, layout_of(24, tp=4, w=12, rank_offset=8))
    assert outcome.first_rank == 8
    assert outcome.reached == (8, 9, 10, 11, 20, 21, 22, 23)
    assert outcome.wrong_pieces == (20, 21, 22, 23)


@FEW
@given(
    case=CASES,
    said=st.lists(st.sampled_from(["shard", "replicate", "leader_only", ""]), min_size=5, max_size=5),
    driver=st.sampled_from([FOUR, FIVE]),
)
def test_reach_against_a_count(case: Case, said: list[str], driver: str) -> None:
    layout = case.layout()
    made = Driver.parse(driver, layout)
    says = dict(zip(made.names, said, strict=False))
    chosen = {word: tuple(n for n, s in says.items() if s == word) for word in set(said) if word}
    call = Call("f", chosen.get("shard", ()), chosen.get("replicate", ()), chosen.get("leader_only", ()))
    outcome = reach(call, made, layout)
    pieces: list[int] = []
    for at in product(*(range(size) for size in made.sizes.values())):
        place = dict(zip(made.names, at, strict=True))
        piece = 0
        for name in made.names:
            if says[name] == "shard":
                piece = piece * made.sizes[name] + place[name]
            elif says[name] != "replicate" and place[name]:
                piece = -1
                break
        pieces.append(piece)
    assert outcome.pieces.tolist() == pieces
    ranks = list(layout.ranks)
    assert list(outcome.reached) == [rank for rank, piece in zip(ranks, pieces, strict=True) if piece >= 0]
    assert sorted(outcome.reached + outcome.not_reached) == ranks
    wrong = [r for r, p in zip(ranks, pieces, strict=True) if p >= 0 and p != layout.lane(r)]
    assert list(outcome.wrong_pieces) == (wrong if call.shard else [])
    assert set(outcome.not_named) == {n for n, s in says.items() if s == "" and made.sizes[n] > 1}
    assert outcome.num_pieces == max(pieces) + 1
