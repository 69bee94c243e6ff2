"""A job in the terminal: right numbers, 80 columns, nothing lost, no colour in a pipe."""

from __future__ import annotations

import doctest
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankloom.explain import terminal_style
from rankloom.explain.terminal import print_job
from rankloom.explain.terminal_grid import LARGEST_GRID, print_grids
from rankloom.explain.terminal_layout import print_layout
from rankloom.explain.terminal_style import fit, some_ranks
from rankloom.explain.terminal_tokens import print_tokens
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.plan.job import Job
from rankloom.plan.links import crossings
from tests.explain.jobs import console, demo, job, text
from tests.layout.brute import CASES, Case

MEGATRON = {
    "parallel.tensor_model_parallel_size": "--tensor-model-parallel-size",
    "train.global_batch_size": "--global-batch-size",
}
TP4 = GTPParallelLayout.resolve(
    world_size=24, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
)
PIPELINE = Case(2, 1, 2, 2, 2, 4, order="tp-cp-gtp-dp-pp", offset=8).layout()
BIG = GTPParallelLayout.resolve(
    world_size=1024,
    tensor_model_parallel_size=4,
    tensor_parallel_num_weight_shards=32,
    tensor_parallel_num_sequence_shards=8,
    context_parallel_size=4,
)
HUGE = GTPParallelLayout.resolve(
    world_size=16384,
    tensor_model_parallel_size=8,
    tensor_parallel_num_weight_shards=512,
    tensor_parallel_num_sequence_shards=64,
    context_parallel_size=8,
)
LONG = GTPParallelLayout.resolve(
    world_size=128,
    tensor_parallel_num_weight_shards=64,
    tensor_parallel_num_sequence_shards=64,
    context_parallel_size=2,
)
PLACED = Topology.listed(demo(), [[0, 1, 4, 5], [2, 3]], gpus_per_node=2)
NODES = {layout: Topology.regular(layout, gpus_per_node=8) for layout in (TP4, BIG)}
WIDE = Topology.regular(HUGE, nvlink_domain_size=72)
TWO_CALLS = ["f: shard=dp replicate=pp,cp,tp", "g: shard=dp"]
JOBS = {
    "one rank": job(GTPParallelLayout.resolve(world_size=1), batch=(8, 1), length=256, model=True),
    "demo": job(demo(), batch=(8, 4), length=256, model=True),
    "two places": job(demo(), topology=PLACED),
    "TP 4": job(TP4, batch=(24, 1), length=256, model=True, topology=NODES[TP4], driver="pp,-1,cp,tp",
                calls=TWO_CALLS, program="megatron", spelled=MEGATRON),
    "pipeline": job(PIPELINE, driver="pp,-1,4,tp", calls=["f: shard=dp"]),
    "128": job(LONG, batch=(4, 1), length=4096, model=True),
    "1024": job(BIG, batch=(512, 1), length=4096, model=True, topology=NODES[BIG]),
    "16384": job(HUGE, batch=(8192, 1), length=8192, topology=WIDE),
}  # fmt: skip


def shown(of: Job, width: int = 80) -> str:
    made = console(width)
    print_job(of, console=made, crossings=crossings(of.layout, of.topology, of.records or None))
    return text(made)


def section(page: str, title: str) -> list[str]:
    """The lines below a title, down to the next empty line."""
    lines = [*page.splitlines(), ""]
    start = lines.index(title) + 1
    return lines[start : lines.index("", start)]


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", JOBS)
def test_it_fits_and_nothing_is_cut(name: str, width: int) -> None:
    page = shown(JOBS[name], width)
    assert max(map(len, page.splitlines())) <= width
    assert "…" not in page
    for size, value in JOBS[name].layout.sizes.items():
        assert re.search(rf"^ {size} +{value}( |$)", page, re.MULTILINE), size


@pytest.mark.parametrize("name", ["demo", "two places", "TP 4", "pipeline", "1024"])
def test_colour_only_in_a_terminal_and_the_same_text(name: str) -> None:
    made = console(colour=True)
    print_job(JOBS[name], console=made)
    plain = console()
    print_job(JOBS[name], console=plain)
    coloured = text(made)
    assert "\x1b[" not in text(plain)
    assert "\x1b[" in coloured
    uncoloured = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in uncoloured.splitlines()] == text(plain).splitlines()


def grid_cells(page: str, title: str, *, nodes: bool) -> dict[int, tuple[str, str]]:
    """rank -> (domain, cell), read off a printed grid."""
    lines = section(page, title)
    start = next((i for i, line in enumerate(lines) if line.startswith(" domain ")), len(lines))
    found, domain = {}, ""
    for line in lines[start + 1 :]:
        first, *rest = line[9:].split() if nodes and not line[9:13].strip() else line[9:].split()[nodes:]
        domain = line[:7].strip() or domain
        found |= {int(first) + step: (domain, cell) for step, cell in enumerate(rest)}
    return found


@given(case=CASES, domain_size=st.integers(1, 12), node_size=st.none() | st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_grids_show_every_rank_where_it_stands(case: Case, domain_size: int, node_size: int | None) -> None:
    layout = case.layout()
    topology = Topology.regular(layout, nvlink_domain_size=domain_size, gpus_per_node=node_size)
    made = console()
    print_grids(layout, topology=topology, console=made)
    page = text(made)
    assert max(map(len, page.splitlines())) <= 80
    if case.world > LARGEST_GRID:
        assert page.startswith("NVLink domains\n")
        return
    sizes = {
        "stage": case.pp, "lane": case.dp * case.gtp_batch, "context": case.cp * case.gtp_seq,
        "tp": case.tp, "shard": case.gtp_seq * case.gtp_batch, "replica": case.dp * case.cp,
    }  # fmt: skip
    for title, names in (
        ("Tokens", ("stage", "lane", "context")),
        ("Weights", ("stage", "tp", "shard", "replica")),
    ):
        parts = [name for name in names if sizes[name] > 1]
        cells = grid_cells(page, title, nodes=node_size is not None)
        assert set(cells) == (set(case.coordinates()) if parts else set())
        if parts:
            assert f"Each cell is a rank's {'.'.join(parts)};" in " ".join(section(page, title))
        for rank, (domain, cell) in cells.items():
            at = case.coordinates()[rank]
            numbers = case.indices(at) | {"stage": at["pp"], "tp": at["tp"]}
            numbers["shard"] = numbers["weight_shard"]
            assert (domain, cell) == (
                str(rank // domain_size),
                ".".join(str(numbers[name]) for name in parts),
            )


def test_listed_domains_stand_apart_and_the_unknown_one_says_so() -> None:
    page = shown(JOBS["two places"])
    assert section(page, "Tokens") == [
        " Each cell is a rank's lane.context; colours go by lane.",
        " domain  node  rank   +0   +1",
        "      0     0     0  0.0  0.1",
        "      0     2     4  0.2  0.3",
        "      1     1     2  1.0  1.1",
        "      ?     3     6  1.2  1.3",
    ]


def test_big_worlds_are_a_line_a_domain() -> None:
    page = shown(JOBS["1024"])
    lines = section(page, "NVLink domains")
    assert lines[0].split() == ["domain", "node", "ranks", "lane", "context", "tp", "shard", "replica"]
    assert lines[6].split() == ["5", "5", "40-47", "1", "2,3", "0-3", "2,3", "1"]
    assert len(lines) == 1 + 32 + 2
    assert " ".join(" ".join(lines[-2:]).split()) == (
        "1024 ranks are too many to show one by one: a line is an NVLink domain, with the numbers"
        " that its ranks have; 96 of 128 domains are left out"
    )


def test_who_gets_which_tokens() -> None:
    page = shown(JOBS["demo"])
    assert section(page, "Batch of a step") == [
        " 8 rows = 4 rows a microbatch x 2 lanes x 1 microbatch; a lane takes 4 rows.",
        " Of every 8 rows, in order: lane 0 rows 0-3, lane 1 rows 4-7.",
    ]
    assert section(page, "Context positions") == [
        " context  tokens           ranks",
        "       0  0-31, 224-255    0,2",
        "       1  32-63, 192-223   1,3",
        "       2  64-95, 160-191   4,6",
        "       3  96-127, 128-159  5,7",
    ]


@given(case=CASES, chunk=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_token_is_taken_once(case: Case, chunk: int) -> None:
    positions = case.cp * case.gtp_seq
    length = 2 * positions * case.tp * chunk
    made = console()
    print_tokens(case.layout(), sequence_length=length, console=made)
    page = text(made)
    if positions == 1:
        assert f"A row of {length} tokens is not cut" in page
        return
    taken: list[int] = []
    for position, line in enumerate(section(page, "Context positions")[1:]):
        number, first, second = re.findall(r"[\d-]+", line)[:3]
        assert int(number) == position
        for piece in (first, second):
            start, _, stop = piece.partition("-")
            taken += range(int(start), int(stop or start) + 1)
    assert sorted(taken) == list(range(length))


def test_rows_that_cannot_be_cut_say_so() -> None:
    made = console()
    print_tokens(demo(), sequence_length=100, console=made)
    assert "100 tokens cannot be cut evenly: the length of a row must be a multiple of 8." in text(made)
    assert " context  of 8 chunks  ranks" in text(made)


def test_collectives_of_a_step() -> None:
    lines = [line.split() for line in section(shown(JOBS["demo"]), "Collectives of a step")]
    # 3 other ranks' quarters of (192 x 192 + 2 x 96 x 192 + 192 x 192 + 3 x 512 x 192) x 4 bytes, 7 times.
    layer = (2 * 192 * 192 + 2 * 96 * 192 + 3 * 512 * 192) // 4
    assert ["gather", "model.layers.*", "all_gather", "7", f"{7 * 3 * layer * 4:,}"] in lines
    assert ["gtp_remat:", "2", "groups", "of", "4", "22,818,816"] in lines
    # 8 ranks, 16 bytes for each of the others: the norm, and whether the run is to end
    assert ["gradient", "norm", "all_gather", "1", "112"] in lines


def test_parameters_have_their_pipeline_stages() -> None:
    page = shown(job(PIPELINE, batch=(16, 1), length=256, model=True))
    lines = section(page, "Parameters")
    assert lines[0].split() == ["parameter", "of", "them", "shape", "a", "rank", "stores", "stage"]
    stages = {line.split()[0]: line.split()[-1] for line in lines[1:]}
    assert stages["embed_tokens.weight"] == "0"
    assert stages["norm.weight"] == stages["lm_head.weight"] == "3"
    assert stages["layers.*.self_attn.q_proj.weight"] == stages["layers.*.input_layernorm.weight"] == "0-3"
    assert " ".join(" ".join(lines).split()).endswith(
        'names without their leading "model."; stage: those that hold it, 1 layer each; a rank stores nothing'
        " of what other stages hold"
    )
    assert "stage" not in " ".join(section(shown(JOBS["demo"]), "Parameters"))


def test_what_leaves_domains_and_nodes() -> None:
    lines = [line.split() for line in section(shown(JOBS["TP 4"]), "What leaves NVLink domains and nodes")]
    assert ["tp", "domain", "0", "of", "6", "0"] in lines
    gtp_remat = next(line for line in lines if line[:2] == ["gtp_remat", "node"])
    assert gtp_remat[2:5] == ["8", "of", "8"]
    assert gtp_remat[6:] == ["0,4,8"]


def test_settings_with_source_and_the_name_in_the_other_program() -> None:
    sources = {"parallel.tensor_model_parallel_size": "file", "parallel.rank_order": "derived"}
    of = job(TP4, program="megatron", spelled=MEGATRON, batch=(24, 1), sources=sources)
    lines = section(shown(of), "Settings")
    at = lines.index(" tensor_model_parallel_size                         4  file")
    assert lines[at + 1] == "   --tensor-model-parallel-size"
    assert " rank_order                           tp-gtp-cp-dp-pp  derived" in lines
    assert (
        lines[lines.index(" global_batch_size                                 24") + 1]
        == "   --global-batch-size"
    )


def test_calls_and_driver() -> None:
    page = " ".join(shown(JOBS["TP 4"]).split())
    assert "driver pp,-1,cp,tp: data_parallel is the 6 lanes" in page
    assert "f reaches all 24 ranks with 6 pieces over data_parallel" in page
    assert "g reaches 6 of 24 ranks" in page
    wrong = shown(JOBS["pipeline"])
    assert "# lane 0: ranks 8-11, 24-27, 40-43, 56-59" in wrong


def test_what_was_not_looked_at_is_said() -> None:
    page = shown(job(demo(), not_looked_at=("no model: heads were not looked at",)))
    assert section(page, "Not looked at") == [" no model: heads were not looked at"]


@pytest.mark.parametrize("layout", [demo(), TP4, BIG, HUGE])
def test_layout_fits_too(layout: GTPParallelLayout) -> None:
    made = console()
    print_layout(layout, sources={}, topology=Topology.regular(layout), console=made)
    assert max(map(len, text(made).splitlines())) <= 80


@given(
    ranks=st.lists(st.integers(0, 20000), min_size=1, max_size=40, unique=True).map(sorted),
    width=st.integers(5, 60),
)
def test_ranks_in_few_columns(ranks: list[int], width: int) -> None:
    shown_text = some_ranks(ranks, width=width)
    pieces = [piece for piece in shown_text.split(",") if piece != ".."]
    named = [
        rank for piece in pieces for rank in range(int(piece.split("-")[0]), int(piece.split("-")[-1]) + 1)
    ]
    assert set(named) <= set(ranks)
    assert ".." in shown_text or named == ranks
    if width >= len("20000-20001,..,20000-20001"):
        assert len(shown_text) <= width


@given(
    texts=st.lists(st.integers(0, 10**6).map(str), min_size=1, max_size=40),
    num_lines=st.integers(1, 3),
    width=st.integers(24, 60),
)
def test_pieces_shown_and_left_out_are_all(texts: list[str], num_lines: int, width: int) -> None:
    lines = fit(len(texts), texts.__getitem__, width=width, num_lines=num_lines).splitlines()
    assert len(lines) <= num_lines
    assert all(len(line) <= width for line in lines)
    pieces = "  ".join(lines).split("  ")
    left_out = re.fullmatch(r"and (\d+) more", pieces[-1])
    if left_out:
        assert int(left_out[1]) == len(texts) - len(pieces) + 1
        pieces = pieces[:-1]
    assert pieces == texts[: len(pieces)]
    assert left_out or len(pieces) == len(texts)
    assert np.all([piece in texts for piece in pieces])


def test_examples_in_docstrings() -> None:
    outcome = doctest.testmod(terminal_style)
    assert outcome.attempted == 2
    assert outcome.failed == 0
