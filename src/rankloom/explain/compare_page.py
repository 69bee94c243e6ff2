"""Two jobs on one page: the same ranks, one map below the other, with what differs first."""

from __future__ import annotations

from collections.abc import Sequence

from rankloom.explain.comparison import Comparison
from rankloom.explain.facts import job_facts, script_json
from rankloom.explain.glossary import GLOSSARY
from rankloom.explain.page import COLOURINGS, PARTS, Colouring, Message, colourings
from rankloom.explain.rendering import render
from rankloom.plan.job import Job

__all__ = ["compare_page"]

MOST_ROWS = 128
COLUMNS = ("lane", "context", "weight_shard", "tp", "replica", "pp", "domain")


def compare_page(a: Job, b: Job, comparison: Comparison, *, messages: Sequence[Message] = ()) -> str:
    """The page of two jobs, a whole HTML document."""
    facts = [job_facts(job) | {"parameters": []} for job in (a, b)]
    rows, more = _changed_rows(comparison)
    return render(
        "compare.html.j2",
        scripts=(*PARTS, "pair"),
        facts=script_json({"jobs": facts, "glossary": dict(GLOSSARY)}),
        jobs=(a, b),
        comparison=comparison,
        messages=messages,
        glossary=GLOSSARY,
        colourings=_colourings(a, b, comparison),
        links=[each for each in comparison.links if each.crossing_a or each.crossing_b],
        changed=[(name, number) for name, number in comparison.ranks.counts.items() if number],
        common=len(comparison.ranks.ranks),
        columns=COLUMNS,
        rows=rows,
        more=more,
    )


def _colourings(a: Job, b: Job, comparison: Comparison) -> list[Colouring]:
    """Every colouring that tells ranks apart in one of the jobs, those in which ranks differ first."""
    telling = {each[0] for job in (a, b) for view in COLOURINGS for each in colourings(job.layout, view)}
    every = {each[0]: each for view in ("tokens", "weights") for each in COLOURINGS[view]}
    shown = [each for name, each in every.items() if name in telling]
    return sorted(shown, key=lambda each: not comparison.ranks.changed(each[0]).any())


def _changed_rows(comparison: Comparison) -> tuple[list[tuple[int, list[tuple[int, int]]]], int]:
    """The first ranks with another number in a column: (rank, (number in a, number in b) a column), and how
    many more there are."""
    ranks = comparison.ranks
    at = ranks.changed(*COLUMNS).nonzero()[0]
    rows = [
        (int(ranks.ranks[i]), [(int(ranks.a[name][i]), int(ranks.b[name][i])) for name in COLUMNS])
        for i in at[:MOST_ROWS]
    ]
    return rows, len(at) - len(rows)
