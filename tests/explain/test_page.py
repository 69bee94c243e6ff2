"""The pages as text: self-contained, small, everything from users escaped."""

from __future__ import annotations

import doctest
import json
import re
from dataclasses import replace
from html import unescape

import pytest

from rankloom.explain import headline as headline_module
from rankloom.explain.compare_page import compare_page
from rankloom.explain.comparison import compare
from rankloom.explain.headline import headline
from rankloom.explain.notebook import layout_html
from rankloom.explain.page import Message, page
from rankloom.layout import GTPParallelLayout
from tests.explain.page_jobs import bare, demo, driven, long_rows, many, staged, stages, thousand

EVIL = "</script><b onload='x'>&\"quoted\" {{ 7 * 7 }}"


def facts_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="facts">(.*?)</script>', html, re.S)[1])


@pytest.mark.parametrize("make", [demo, driven, stages, staged, long_rows, thousand])
def test_nothing_comes_from_outside(make) -> None:
    html = page(make())
    addresses = set(re.findall(r"\w+://[^\s\"'`]*", html))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|<img|\ssrc=|fetch\(|import\(", html
    )
    assert "default-src 'none'" in html


def test_size() -> None:
    assert len(page(thousand()).encode()) < 1_000_000
    assert len(page(many()).encode()) < 3_000_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"world_size": 1}, "1 GPU holds 1 whole copy of the weights, and trains on 1 lane; no row is cut."),
        (
            {"world_size": 8},
            "8 GPUs hold 8 whole copies of the weights, and train on 8 lanes; no row is cut.",
        ),
        (
            {"world_size": 24, "tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 12},
            "24 GPUs hold 2 copies of the weights, each cut 12 ways, and train on 6 lanes;"
            " each row is worked on by 4 GPUs together.",
        ),
        (
            {"world_size": 16, "tensor_model_parallel_size": 2, "context_parallel_size": 2}
            | {"pipeline_model_parallel_size": 2},
            "16 GPUs hold 4 copies of the weights, each cut 2 ways and spread over 2 pipeline stages,"
            " and train on 2 lanes; each row is cut into 2 parts, each worked on by 2 GPUs together.",
        ),
    ],
)
def test_headline(settings: dict[str, int], words: str) -> None:
    assert headline(GTPParallelLayout.resolve(**settings)) == words


def test_examples() -> None:
    outcome = doctest.testmod(headline_module, extraglobs={"GTPParallelLayout": GTPParallelLayout})
    assert (outcome.attempted, outcome.failed) == (1, 0)


def test_the_title_says_the_essentials_first() -> None:
    html = page(demo())
    words = (
        "8 GPUs hold 2 copies of the weights, each cut 4 ways, and train on 2 lanes;"
        " each row is cut over 4 GPUs."
    )
    assert f"<h1>{words}</h1>" in html
    assert f"<title>demo.yaml: {words}</title>" in html


def test_what_users_wrote_is_text() -> None:
    job = replace(
        driven(), title=EVIL, spelled={"cluster.world_size": EVIL}, sources={"cluster.world_size": EVIL}
    )
    job = replace(job, not_looked_at=(EVIL,), calls=(replace(job.calls[0], name=EVIL), job.calls[1]))
    html = page(job, messages=[Message("error", EVIL)])
    assert EVIL not in html
    assert "<b onload" not in html
    assert "49" not in re.search(r"<title>(.*?)</title>", html)[1]
    assert unescape(html).count(EVIL) >= 6
    assert facts_of(html)["title"] == EVIL
    assert html.count("</script>") == 2


def test_messages_come_first() -> None:
    html = page(demo(), messages=[Message("error", "first"), Message("note", "second")])
    assert re.findall(r'<li class="(\w+)"><b>\w+</b><span>(.*?)</span>', html) == [
        ("error", "first"),
        ("note", "second"),
    ]
    assert html.index("first</span>") < html.index('id="ranks"')
    assert "<summary>1 note</summary>" in html  # what is merely good to know is folded away
    assert html.index("first</span>") < html.index("<summary>1 note") < html.index("second</span>")
    assert 'class="messages"' not in page(demo())


def test_a_layout_alone_is_enough() -> None:
    html = page(bare(world_size=1))
    assert "The model is not known" in html
    assert "Every group has one rank only" in html
    assert 'id="calls"' not in html
    facts = facts_of(page(stages()))
    assert (facts["first"], facts["batch"], facts["parameters"], facts["calls"]) == (8, None, [], [])


def test_a_row_that_cannot_be_cut_is_said_to_be_so() -> None:
    html = page(replace(demo(), sequence_length=250))
    assert "250 tokens cannot be cut evenly; the length must be a multiple of 8." in html


def test_tables_have_their_numbers() -> None:
    html = re.sub(r"<[^>]+>", " ", page(driven()))
    text = re.sub(r"\s+", " ", unescape(html)).replace("\u2013", "-").replace("\u00d7", "x")
    assert "4 microbatches x 6 lanes x 2 rows each = 48." in text
    assert "some data_parallel - 6 6 of 24" in text
    assert "gtp_remat_size 3 12 / 4 = W / TP" in text
    assert "8 of 8" in text  # all gtp_remat groups leave a domain of 8


def test_only_telling_colourings_are_offered() -> None:
    offered = re.findall(r'data-colouring="([\w:]+)"', page(long_rows()).split("<script")[0])
    assert offered == ["weight_shard", "replica", "context"]
    offered = re.findall(r'data-colouring="([\w:]+)"', page(driven()).split("<script")[0])
    assert offered == ["part", "weight_shard", "tp", "replica", "lane", "call:0", "call:1"]
    offered = re.findall(r'data-colouring="([\w:]+)"', page(staged()).split("<script")[0])
    assert offered == ["part", "tp", "pp", "pp"]
    assert "One colour stores the same part of the weights; a cell says TP.stage." in page(staged())
    offered = re.findall(r'data-colouring="([\w:]+)"', page(bare(world_size=1)).split("<script")[0])
    assert offered == ["weight_shard", "lane"]


def test_in_a_notebook_the_page_is_a_frame() -> None:
    layout = demo().layout
    html = layout_html(layout)
    inner = re.fullmatch(r'<iframe srcdoc="([^"]*)"[^>]*></iframe>', html)
    assert inner
    assert unescape(inner[1]).startswith("<!doctype html>")
    assert headline(layout) in unescape(inner[1])


def test_two_jobs() -> None:
    a = demo()
    b = replace(bare(EVIL, world_size=8, context_parallel_size=2), sources={})
    comparison = compare(a, b)
    html = compare_page(a, b, comparison, messages=[Message("note", EVIL)])
    assert EVIL not in html
    assert comparison.verdict in unescape(html)
    assert [job["title"] for job in facts_of(html)["jobs"]] == ["demo.yaml", EVIL]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    assert "tensor_parallel_num_weight_shards 4 1" in text
    assert set(re.findall(r"\w+://[^\s\"'`]*", html)) <= {"http://www.w3.org/2000/svg"}


def test_groups_that_a_job_does_not_have_are_none() -> None:
    a, b = demo(), bare("b", world_size=8)
    html = compare_page(a, b, compare(a, b))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("<script")[0])).replace("\u00d7", "x")
    assert "gtp_remat 2 x 4 none 2 0" in text
    assert " 0 x " not in text
    assert "0 of 0" not in text


def test_two_equal_jobs() -> None:
    html = compare_page(demo(), demo(), compare(demo(), demo()))
    assert "All 8 ranks that are in both stand in the same place." in html
    assert "no setting differs" in html
    assert 'id="changes"' not in html
