"""The pages in a real browser: no complaint, no request, and what is lit is what the layout says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankloom.explain.compare_page import compare_page
from rankloom.explain.comparison import compare
from rankloom.explain.notebook import layout_html
from rankloom.explain.page import page
from rankloom.layout import GTPParallelLayout
from tests.explain.browser import Browser, browser, chromium
from tests.explain.page_jobs import bare, demo, driven, long_rows, many, staged, stages, thousand

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="no chromium, chromium-browser or google-chrome on PATH"
)

KINDS = {
    "weights": ("tp", "gtp_remat", "tp_gtp_remat", "replica", "pp"),
    "tokens": ("tp", "context", "batch", "lane", "pp"),
}
LIT = """
(view) => Object.fromEntries(
  [...document.querySelectorAll(`.map[data-view="${view}"] .cell[data-lit]`)]
    .map((cell) => [cell.dataset.rank, cell.dataset.lit.split(" ").sort()]))
"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def show(tab: Browser, folder: Path, html: str, **window: object) -> None:
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    tab.open(path, **window)


def expected(layout: GTPParallelLayout, rank: int, view: str) -> dict[str, list[str]]:
    """rank -> the kinds of groups it shares with ``rank``, straight from the layout."""
    lit: dict[str, list[str]] = {}
    for kind in KINDS[view]:
        for group in getattr(layout, view).groups(kind).tolist():
            if rank in group:
                for member in group:
                    lit.setdefault(str(member), []).append(kind)
    return {member: sorted(kinds) for member, kinds in lit.items()}


def lit(tab: Browser, view: str) -> dict[str, list[str]]:
    return tab.run(f"({LIT})('{view}')")


def cell(rank: int, view: str = "weights") -> str:
    return f'.map[data-view="{view}"] .cell[data-rank="{rank}"]'


def quiet(tab: Browser) -> None:
    """No complaint, and no request but the one for the page itself."""
    tab.run(SETTLED)
    assert tab.errors == []
    assert [address for address in tab.requests if not address.startswith("data:")] == tab.requests[:1]
    assert tab.requests[0].startswith("file:")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("make", [demo, driven, stages, staged, long_rows, thousand, many])
def test_no_complaint_and_no_request(tab: Browser, folder: Path, make, theme: str) -> None:
    show(tab, folder, page(make()), theme=theme)
    quiet(tab)
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    dark = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (float(dark.split("(")[1].split()[0]) < 0.5) == (theme == "dark")


@pytest.mark.parametrize("make", [demo, driven, stages])
def test_pointing_at_a_rank_lights_its_groups_in_both_maps(tab: Browser, folder: Path, make) -> None:
    job = make()
    show(tab, folder, page(job))
    for view in KINDS:
        for rank in job.layout.ranks:
            tab.point(cell(rank, view))
            for each in KINDS:
                assert lit(tab, each) == expected(job.layout, rank, each), (rank, view, each)
    tab.point("h1")
    assert lit(tab, "weights") == lit(tab, "tokens") == {}
    quiet(tab)


@pytest.mark.parametrize("make", [long_rows, thousand])
def test_pointing_at_a_rank_of_many(tab: Browser, folder: Path, make) -> None:
    job = make()
    show(tab, folder, page(job))
    for rank in (0, 1, 70, job.layout.world_size // 2 + 5, job.layout.world_size - 1):
        for view in KINDS:
            tab.point(cell(rank, view))
            for each in KINDS:
                assert lit(tab, each) == expected(job.layout, rank, each)


@pytest.mark.long
def test_every_rank_of_a_thousand(tab: Browser, folder: Path) -> None:
    job = thousand()
    show(tab, folder, page(job))
    script = f"""
      const lit = {LIT};
      const bubbles = true;
      for (const cell of document.querySelectorAll('.map[data-view="weights"] .cell')) {{
        cell.dispatchEvent(new PointerEvent("pointerover", {{ bubbles }}));
        all[cell.dataset.rank] = ["weights", "tokens"].map((view) => Object.keys(lit(view)).length);
      }}
    """
    counts = tab.run(f"(() => {{ const all = {{}}; {script}; return all; }})()")
    assert len(counts) == 1024
    # tp_gtp_remat has 64 ranks and replica 15 others; lane has 32 and batch 31 others. Stages: one.
    assert set(map(tuple, counts.values())) == {(64 + 15, 32 + 31)}


def test_the_keyboard_does_what_the_pointer_does(tab: Browser, folder: Path) -> None:
    job = driven()
    show(tab, folder, page(job))
    tab.run(f"document.querySelector('{cell(0)}').focus()")
    at = "Number(document.activeElement.dataset.rank)"
    walk = [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowDown", 10), ("ArrowLeft", 9), ("ArrowUp", 1)]
    for key, rank in [*walk, ("End", 23), ("Home", 0), ("ArrowDown", 8)]:
        tab.press(key)
        assert tab.run(at) == rank
        assert (
            tab.run("document.querySelectorAll('.map[data-view=weights] [tabindex=\"0\"].cell').length") == 1
        )
        for view in KINDS:
            assert lit(tab, view) == expected(job.layout, rank, view)
    tab.press("Enter")
    tab.run("document.activeElement.blur()")
    assert lit(tab, "tokens") == expected(job.layout, 8, "tokens")
    assert tab.run(f"document.querySelector('{cell(8)}').getAttribute('aria-selected')") == "true"
    tab.press("Escape")
    assert lit(tab, "weights") == lit(tab, "tokens") == {}
    quiet(tab)


def test_a_click_keeps_a_rank_and_its_chips_keep_a_group(tab: Browser, folder: Path) -> None:
    job = driven()
    show(tab, folder, page(job))
    tab.click(cell(9))
    tab.point("h1")
    assert lit(tab, "weights") == expected(job.layout, 9, "weights")
    tab.point('.chip[data-kind="replica"]')
    assert lit(tab, "weights") == lit(tab, "tokens") == {"9": ["replica"], "21": ["replica"]}
    tab.point("h1")
    assert lit(tab, "weights") == expected(job.layout, 9, "weights")
    tab.click('.chip[data-kind="gtp_remat"]')
    tab.point("h1")
    assert lit(tab, "tokens") == {rank: ["gtp_remat"] for rank in ("1", "5", "9")}
    assert tab.run("document.querySelector('.chip[aria-pressed=true]').dataset.kind") == "gtp_remat"
    tab.press("Escape")
    assert lit(tab, "tokens") == {}


def test_the_panel_says_where_a_rank_stands(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(demo()))
    tab.point(cell(5))
    text = tab.text(".panel")
    assert "Stores weight shard 1 (of 4), in copy 1 (of 2). Trains on lane 0 (of 2), tokens 96-159" in text
    chips = [tab.text(f".chip:nth-child({i})") for i in range(1, 9)]
    assert chips == [
        "tp alone",
        "gtp_remat 4-7",
        "tp_gtp_remat 4-7",
        "replica 1, 5",
        "context 0, 1, 4, 5",
        "batch 5, 7",
        "lane 0, 1, 4, 5",
        "pp alone",
    ]


def test_one_colouring_at_a_time(tab: Browser, folder: Path) -> None:
    job = driven()
    show(tab, folder, page(job))
    at = job.layout.coord_arrays()
    for view, name in (
        ("weights", "replica"),
        ("weights", "tp"),
        ("weights", "weight_shard"),
        ("tokens", "lane"),
    ):
        tab.click(f'.map[data-view="{view}"] [data-colouring="{name}"]')
        cells = f"[...document.querySelectorAll('.map[data-view=\"{view}\"] .cell')]"
        fills = tab.run(f"{cells}.map((cell) => cell.style.background)")
        of_value: dict[int, set[str]] = {}
        for value, fill in zip(at[name].tolist(), fills, strict=True):
            of_value.setdefault(value, set()).add(fill)
        assert all(len(found) == 1 for found in of_value.values())
        assert len(set.union(*of_value.values())) == len(of_value)
        labels = tab.run(f"{cells}.map((cell) => cell.querySelector('i').textContent.split(' ')[1])")
        assert labels == [str(value) for value in at[name].tolist()]
    assert tab.run("document.querySelectorAll('.map[data-view=weights] [aria-checked=true]').length") == 1


def test_colouring_stays_after_a_click_on_a_rank(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(driven()))
    checked = "[...document.querySelectorAll('.map[data-view=weights] [role=radio][aria-checked=true]')]"
    tab.click('.map[data-view="weights"] [data-colouring="tp"]')
    caption = tab.text('.map[data-view="weights"] .caption')
    tab.click(cell(5))
    tab.click('.map[data-view="weights"] .caption')
    assert tab.run(f"{checked}.map((each) => each.dataset.colouring)") == ["tp"]
    assert (
        tab.text('.map[data-view="weights"] .caption')
        == caption
        == ("One colour computes with the same part of each weight.")
    )
    tab.click('[data-show-call="1"]')
    tab.click('[data-show-call="0"]')
    tab.click('[data-show-call="1"]')
    assert tab.run("document.querySelector('.map[data-view=tokens]').dataset.colouring") == "call:1"


@pytest.mark.parametrize("make", [driven, staged, stages])
def test_ranks_are_coloured_by_the_part_that_they_store(tab: Browser, folder: Path, make) -> None:
    job = make()
    show(tab, folder, page(job))
    at, sizes = job.layout.coord_arrays(), job.layout.axis_sizes
    remat = sizes["gtp_seq"] * sizes["gtp_batch"]
    cuts = {"tp": sizes["tp"], "weight_shard": remat, "pp": sizes["pp"]}
    names = [name for name, size in cuts.items() if size > 1]
    parts = [tuple(int(at[name][i]) for name in names) for i in range(job.layout.world_size)]
    cells = "[...document.querySelectorAll('.map[data-view=weights] .cell')]"
    labels = tab.run(f"{cells}.map((cell) => cell.querySelector('i').textContent)")
    assert labels == [".".join(map(str, part)) for part in parts]
    fills = tab.run(f"{cells}.map((cell) => cell.style.background)")
    assert len(set(zip(parts, fills, strict=True))) == len(set(fills)) == len(set(parts))
    tab.click('.map[data-view="weights"] .swatch[data-value="1"]')
    tab.point("h1")
    found = {int(rank) for rank in lit(tab, "weights")}
    assert found == {
        rank
        for rank, part in zip(job.layout.ranks, parts, strict=True)
        if part == parts[min(found) - job.layout.rank_offset]
    }
    quiet(tab)


@pytest.mark.parametrize("make", [demo, driven, stages, staged])
def test_what_is_lit_without_a_mark_is_in_the_legend(tab: Browser, folder: Path, make) -> None:
    job = make()
    show(tab, folder, page(job))
    marked = {"weights": {"tp", "gtp_remat", "replica"}, "tokens": {"tp", "context", "batch"}}
    for view, kinds in marked.items():
        bare_ones = any(
            not kinds & set(found)
            for rank in job.layout.ranks
            for found in expected(job.layout, rank, view).values()
        )
        plain = f"document.querySelectorAll('.map[data-view={view}] .mark-line .plain').length"
        assert tab.run(plain) == bare_ones, view


def test_a_call_shows_who_is_never_called(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(driven()))
    tab.click('[data-show-call="1"]')
    never = tab.run(
        "[...document.querySelectorAll('.map[data-view=tokens] .cell.none')].map((c) => +c.dataset.rank)"
    )
    assert never == [rank for rank in range(24) if rank % 4]
    tab.click('.map[data-view="tokens"] .swatch[data-value="-1"]')
    tab.point("h1")
    assert sorted(map(int, lit(tab, "weights"))) == never


def test_a_lane_of_the_legend_stays_lit(tab: Browser, folder: Path) -> None:
    job = driven()
    show(tab, folder, page(job))
    tab.click('.map[data-view="tokens"] .swatch[data-value="2"]')
    tab.point("h1")
    lane = {str(rank): ["lane"] for rank in job.layout.ranks if job.layout.lane(rank) == 2}
    assert lit(tab, "weights") == lit(tab, "tokens") == lane
    show(tab, folder, page(thousand()))
    tab.run(
        "(() => { const field = document.querySelector('.map[data-view=tokens] .pick input');"
        " field.value = 7;"
        " field.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )
    layout = thousand().layout
    assert sorted(map(int, lit(tab, "tokens"))) == [r for r in layout.ranks if layout.lane(r) == 7]


def test_a_batch_is_followed_to_the_tokens_of_a_rank(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(demo()))
    tab.click(cell(1))
    text = tab.text("#batch")
    assert "Lane 0 is 4 ranks: 0, 1, 4, 5. Of every step it takes rows 0-3." in text
    assert "Rank 1 works on tokens 32-63 and 192-223 of each of these rows: 64 tokens x 4 rows" in text
    widths = tab.run(
        "[...document.querySelectorAll('#batch .row .bar')].map((bar) => bar.getBoundingClientRect().width)"
    )
    assert len(widths) == 8
    assert max(widths) - min(widths) < 0.1
    positions = tab.run("[...document.querySelectorAll('#batch .row .bar')].map((b) => +b.dataset.context)")
    assert positions == [0, 1, 2, 3, 3, 2, 1, 0]
    tab.press("Escape")
    tab.point('#batch .rows .bar[data-lane="1"]')
    assert lit(tab, "tokens") == {rank: ["lane"] for rank in ("2", "3", "6", "7")}


def test_a_parameter_is_drawn_to_scale(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(driven()))
    tab.click(cell(9))  # tp 1, weight shard 2
    name = "model.layers.*.self_attn.o_proj.weight"
    tab.run(
        "(() => { const choose = document.querySelector('#weights select');"
        f" choose.value = [...choose.options].find((each) => each.text.startsWith('{name}')).value;"
        " choose.dispatchEvent(new Event('change')); })()"
    )
    text = tab.text("#weights")
    assert "TP cuts its columns 4 ways; gtp_remat cuts the rows of each part 3 ways." in text
    assert "Rank 9 stores rows 128-191, columns 48-95: 3,072 of 36,864 values." in text
    edges = "['x', 'y', 'width', 'height'].map((key) => +box.getAttribute(key))"
    mine, whole = tab.run(
        "['.mine', '.outline'].map((each) => {"
        f" const box = document.querySelector('.cut ' + each); return {edges}; }})"
    )
    assert [round(m / w, 3) for m, w in zip(mine[2:], whole[2:], strict=True)] == [0.25, round(64 / 192, 3)]
    tab.press("Escape")
    tab.point('.cut .slice[data-tp="3"][data-shard="0"]')
    assert lit(tab, "weights") == {"3": ["slice"], "15": ["slice"]}


def choose(tab: Browser, name: str) -> str:
    """Choose the parameter; its line in the list."""
    return str(
        tab.run(
            "(() => { const choose = document.querySelector('#weights select');"
            f" const option = [...choose.options].find((each) => each.text.startsWith('{name}'));"
            " choose.value = option.value; choose.dispatchEvent(new Event('change'));"
            " return option.text; })()"
        )
    )


def test_a_rank_stores_what_its_stage_holds(tab: Browser, folder: Path) -> None:
    job = staged()
    show(tab, folder, page(job))
    rank = {
        (int(tp), int(pp)): i
        for i, (tp, pp) in enumerate(zip(*map(job.layout.coord_arrays().get, ("tp", "pp")), strict=True))
    }
    mine = "document.querySelectorAll('.cut .mine').length"
    tab.click(cell(rank[1, 0]))
    assert choose(tab, "lm_head.weight") == "lm_head.weight (stage 3)"
    assert tab.text(".box-words") == f"Rank {rank[1, 0]} is in stage 0 and holds no part of it: stage 3 does."
    assert tab.run(mine) == 0
    assert choose(tab, "model.embed_tokens") == "model.embed_tokens.weight (stage 0)"
    words = f"Rank {rank[1, 0]} stores rows 2,048-4,095, all 192 columns: 393,216 of 786,432 values."
    assert tab.text(".box-words") == f"{words} Stage 0 holds it."
    assert tab.run(mine) == 1
    assert (
        choose(tab, "model.layers.*.mlp.up") == "model.layers.*.mlp.up_proj.weight (8 layers over 4 stages)"
    )
    tab.click(cell(rank[0, 2]))
    words = f"Rank {rank[0, 2]} stores rows 0-255, all 192 columns: 49,152 of 98,304 values."
    assert tab.text(".box-words") == f"{words} The same for each of layers 4-5, the layers of stage 2."
    tab.press("Escape")
    choose(tab, "lm_head")
    tab.point('.cut .slice[data-tp="1"]')
    assert lit(tab, "weights") == {str(rank[1, 3]): ["slice"]}
    choose(tab, "model.norm")
    tab.point(".cut .slice")
    assert lit(tab, "weights") == {str(rank[tp, 3]): ["slice"] for tp in (0, 1)}
    quiet(tab)


@pytest.mark.parametrize("make", [driven, staged])
def test_slices_have_the_colours_of_the_ranks_that_store_them(tab: Browser, folder: Path, make) -> None:
    job = make()
    show(tab, folder, page(job))
    at = job.layout.coord_arrays()
    fills = tab.run(
        "[...document.querySelectorAll('.map[data-view=weights] .cell')].map((c) => c.style.background)"
    )
    wanted = {
        f"{at['tp'][i]} {at['weight_shard'][i]}": fill for i, fill in enumerate(fills) if at["pp"][i] == 0
    }
    drawn = (
        "[...document.querySelectorAll('.cut .slice')]"
        ".map((each) => [`${each.dataset.tp} ${each.dataset.shard}`, each.style.fill])"
    )
    assert dict(tab.run(drawn)) == wanted
    assert len(set(wanted.values())) == len(wanted)
    labels = tab.run("[...document.querySelectorAll('.cut .on-slice')].map((each) => each.textContent)")
    assert sorted(labels) == ([] if make is staged else sorted(key.replace(" ", ".") for key in wanted))


def test_a_row_of_the_traffic_lights_a_group(tab: Browser, folder: Path) -> None:
    job = driven()
    show(tab, folder, page(job))
    tab.click(cell(9))
    tab.point('#traffic [data-group-kind="gtp_remat"] .head')
    assert lit(tab, "weights") == {rank: ["gtp_remat"] for rank in ("1", "5", "9")}
    tab.point("#traffic h2")
    assert lit(tab, "weights") == expected(job.layout, 9, "weights")


def test_terms_are_explained_where_they_stand(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(demo()))
    note = "(() => { const n = document.querySelector('#term-note'); return n.hidden ? '' : n.innerText; })()"
    assert tab.run(note) == ""
    tab.point('#batch [data-term="zigzag"]')
    assert tab.run(note).startswith("zigzag Each rank takes one early and one late chunk")
    tab.point("h1")
    assert tab.run(note) == ""
    tab.run("document.querySelector('#ranks [data-term=\"rank\"]').focus()")
    assert tab.run(note).startswith("rank One process with one GPU")
    tab.press("Escape")
    assert tab.run(note) == ""
    tab.run("document.querySelector('#batch [data-term=\"lane\"]').click()")
    assert tab.run(note).startswith("lane ")


def test_a_rank_is_found_and_the_maps_are_zoomed(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(thousand()))
    zoom = "document.querySelector('.map').dataset.zoom"
    before = int(tab.run(zoom))
    tab.click('[data-zoom-by="1"]')
    assert int(tab.run(zoom)) == before + 1
    tab.run("document.querySelector('.find input').value = '777'")
    tab.click(".find button")
    tab.point("h1")
    assert lit(tab, "tokens") == expected(thousand().layout, 777, "tokens")
    tab.run("document.querySelector('.find input').value = '5000'")
    tab.click(".find button")
    assert tab.text(".find output") == "no rank 5000: there are ranks 0 to 1023"
    assert tab.run("document.querySelector('.find output').checkVisibility()")
    assert lit(tab, "tokens") == expected(thousand().layout, 777, "tokens")
    quiet(tab)


@pytest.mark.parametrize("typed", ["1", "", "two", "-1", "1e0"])
def test_a_world_of_one_rank_has_no_other(tab: Browser, folder: Path, typed: str) -> None:
    show(tab, folder, page(bare(world_size=1)))
    field = "document.querySelector('.find input')"
    assert tab.run(f"{field}.placeholder") == "0"
    tab.run(f"{field}.value = '{typed}'")
    tab.click(".find button")
    start = f"no rank {typed}" if typed else "type a number"
    assert tab.text(".find output") == f"{start}: there is rank 0 only"
    tab.run(f"{field}.value = '0'")
    tab.click(".find button")
    assert tab.text(".find output") == ""
    assert lit(tab, "weights")["0"]


@pytest.mark.parametrize("domain_size", [72, 8])
def test_16384_ranks_are_closed_boxes_that_open(tab: Browser, folder: Path, domain_size: int) -> None:
    job = many(domain_size=domain_size)
    show(tab, folder, page(job))
    tiles = "document.querySelectorAll('.map[data-view=\"{}\"] .tile').length"
    boxes = -(-16384 // domain_size)
    assert [tab.run(tiles.format(view)) for view in KINDS] == [boxes - 1] * 2
    tab.point(cell(5))
    for view in KINDS:
        wanted = expected(job.layout, 5, view)
        assert lit(tab, view) == {rank: kinds for rank, kinds in wanted.items() if int(rank) < domain_size}
        counts: dict[str, str] = {}
        for rank in map(int, wanted):
            if rank >= domain_size:
                box = str(rank // domain_size)
                counts[box] = str(int(counts.get(box, 0)) + 1)
        found = tab.run(
            f"Object.fromEntries([...document.querySelectorAll('.map[data-view=\"{view}\"] .tile[data-lit]')]"
            ".map((tile) => [tile.dataset.block, tile.dataset.count]))"
        )
        assert found == counts
    tab.click('.map[data-view="tokens"] .tile[data-block="3"]')
    assert [tab.run(tiles.format(view)) for view in KINDS] == [boxes - 2] * 2
    rank = 3 * domain_size + 2
    tab.point(cell(rank, "tokens"))
    open_ranks = [*range(domain_size), *range(3 * domain_size, 4 * domain_size)]
    wanted = expected(job.layout, rank, "weights")
    assert lit(tab, "weights") == {str(r): wanted[str(r)] for r in open_ranks if str(r) in wanted}
    quiet(tab)


def test_light_and_dark_can_be_switched(tab: Browser, folder: Path) -> None:
    show(tab, folder, page(demo()), theme="dark")
    assert tab.run("document.querySelector('.theme').innerText") == "Light"
    before = tab.run("getComputedStyle(document.body).backgroundColor")
    tab.click(".theme")
    assert tab.run("document.querySelector('.theme').innerText") == "Dark"
    assert tab.run("getComputedStyle(document.body).backgroundColor") != before


OVERLAPS = """
(() => {
  const tables = [...document.querySelectorAll('.numbers > table')];
  const [a, b] = tables.map((each) => each.getBoundingClientRect());
  return a.right > b.left && a.bottom > b.top; })()
"""


@pytest.mark.parametrize("width", [360, 960, 1440])
def test_long_names_stay_inside_the_page(tab: Browser, folder: Path, width: int) -> None:
    long = "a_name_without_any_blank_" * 12
    names = {
        f"parallel.{name}": f"policy.megatron_cfg.{name}"
        for name in ("tensor_model_parallel_size", "tensor_parallel_num_sequence_shards")
    }
    a, b = (replace(make(), title=long, spelled=names) for make in (demo, driven))
    for html in (page(a), compare_page(a, b, compare(a, b))):
        show(tab, folder, html, width=width)
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        assert not tab.run(OVERLAPS)
        outside = (
            "[...document.querySelectorAll('h1, h3, .name')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
        )
        assert tab.run(f"{outside}.length") == 0


def test_settings_stay_beside_sizes(tab: Browser, folder: Path) -> None:
    settings = {"world_size": 16, "tensor_parallel_num_weight_shards": 4, "context_parallel_size": 2}
    sources = {"parallel.rank_order": "the command line", "parallel.tensor_parallel_num_sequence_shards": "x"}
    a = bare("a", **settings, tensor_parallel_num_sequence_shards=2)
    b = bare("b", **settings, tensor_parallel_num_sequence_shards=1, rank_order="tp-cp-gtp-dp-pp")
    a, b = (replace(each, sources=sources) for each in (a, b))
    html = compare_page(a, b, compare(a, b))
    for width in (1000, 1200, 1440):
        show(tab, folder, html, width=width)
        assert not tab.run(OVERLAPS), width


def test_the_panel_covers_no_map_while_it_is_empty(tab: Browser, folder: Path) -> None:
    position = "getComputedStyle(document.querySelector('.panel')).position"
    show(tab, folder, page(long_rows()), height=600)
    assert tab.run(position) == "static"
    tab.click(cell(0))
    assert tab.run(position) == "sticky"
    tab.press("Escape")
    assert tab.run(position) == "static"
    a, b = demo(), driven()
    show(tab, folder, compare_page(a, b, compare(a, b)), height=600)
    assert tab.run(position) == "static"
    tab.click('.map[data-job="1"] .cell[data-rank="20"]')
    assert tab.run(position) == "sticky"
    tab.press("Escape")
    assert tab.run(position) == "static"


@pytest.mark.parametrize("width", [360, 800, 1920])
def test_no_width_cuts_the_page_off(tab: Browser, folder: Path, width: int) -> None:
    for make in (demo, driven, thousand):
        show(tab, folder, page(make()), width=width)
        assert tab.run("document.documentElement.scrollWidth <= innerWidth"), make


def test_a_page_says_what_users_wrote(tab: Browser, folder: Path) -> None:
    title = "</script><b id=evil>\"'&{{1}}"
    job = driven()
    job = replace(job, title=title, calls=(replace(job.calls[0], name=title),))
    show(tab, folder, page(job))
    assert tab.run("document.querySelector('.name b').textContent") == title
    assert tab.run("document.querySelector('#evil')") is None
    quiet(tab)


def test_two_jobs_light_their_own_groups(tab: Browser, folder: Path) -> None:
    settings = {"world_size": 8, "tensor_parallel_num_weight_shards": 2, "context_parallel_size": 2}
    a = bare("a", **settings)
    b = bare("b", rank_order="tp-cp-gtp-dp-pp", **settings)
    show(tab, folder, compare_page(a, b, compare(a, b)))
    lit_of = LIT.replace("data-view", "data-job")
    for name, view in (("lane", "tokens"), ("weight_shard", "weights")):
        tab.click(f'#ranks [data-colouring="{name}"]')
        changed = tab.run("[...document.querySelectorAll('.map [data-changed]')].map((c) => +c.dataset.rank)")
        differ = a.layout.coord_arrays()[name] != b.layout.coord_arrays()[name]
        assert changed == [*differ.nonzero()[0].tolist()] * 2
        for rank in range(8):
            tab.point(f'.map[data-job="1"] .cell[data-rank="{rank}"]')
            for index, job in enumerate((a, b)):
                assert tab.run(f"({lit_of})('{index}')") == expected(job.layout, rank, view)
    tab.click('.panel [data-job="1"] .chip[data-kind="lane"]')
    tab.point("h1")
    assert tab.run(f"({lit_of})('0')") == {}
    marks_of_a = "[...document.querySelectorAll('.map[data-job=\"0\"] .marks')]"
    visible = f"{marks_of_a}.filter((each) => each.checkVisibility())"
    for name, words in (("lane", "same rows, other tokens"), ("weight_shard", "gathers weights with it")):
        tab.click(f'#ranks [data-colouring="{name}"]')
        marks = tab.run(f"{visible}.map((each) => each.innerText)")
        assert len(marks) == 1
        assert marks[0].startswith(words)
    quiet(tab)


def test_two_jobs_of_other_sizes(tab: Browser, folder: Path) -> None:
    a, b = demo(), thousand()
    show(tab, folder, compare_page(a, b, compare(a, b)))
    tab.run("document.querySelector('.find input').value = '900'")
    tab.click(".find button")
    assert "Rank 900" in tab.text('.panel [data-job="0"]')
    assert "is not in demo.yaml" in tab.text('.panel [data-job="0"]')
    quiet(tab)


def test_in_a_notebook(tab: Browser, folder: Path) -> None:
    show(tab, folder, f"<!doctype html><body>{layout_html(demo().layout)}</body>")
    quiet(tab)
    assert tab.run("document.querySelector('iframe').offsetHeight") == 760
