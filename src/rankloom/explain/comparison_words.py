"""The verdict of a comparison in plain words: other data, other weights, memory, links, the reshape trap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankloom.plan.amounts import bytes_text

if TYPE_CHECKING:
    from rankloom.explain.comparison_types import Comparison, LinkChange
    from rankloom.plan.job import Job

__all__ = ["verdict"]

MAX_KINDS = 3  # named in a sentence


def verdict(of: Comparison) -> str:
    """One paragraph. What matters comes first; exact numbers; the first job is A, the second B."""
    sentences = [_worlds(of)]
    if len(of.ranks.ranks):
        alike = _alike(of)
        sentences += [alike] if alike else [_same_sizes(of), _data(of), _weights(of), _replicas(of)]
        sentences += [_sequence_parallel(of), _batch(of), _memory(of)]
        quiet = alike and not _links_differ(of)
        sentences += [_unknown(of).strip()] if quiet else [_talk(of), _links(of)]
    sentences += [_reshape(of), *of.notes]
    return " ".join(sentence for sentence in sentences if sentence)


def _worlds(of: Comparison) -> str:
    both, a, b = len(of.ranks.ranks), of.a.layout.world_size, of.b.layout.world_size
    if not both:
        return f"No rank is in both: A has ranks {_span(of.a)}, B {_span(of.b)}."
    if not of.only_a and not of.only_b:
        return ""
    those = f"the {both} that are in both are" if both > 1 else "the one that is in both is"
    return f"A has {_count(a, 'rank')} and B {b}; {those} compared."


def _span(job: Job) -> str:
    ranks = job.layout.ranks
    return f"{ranks.start} to {ranks.stop - 1}"


def _alike(of: Comparison) -> str:
    """Where nothing differs about layout and places."""
    differ = of.only_a or of.only_b or of.sizes or len(of.differing_ranks)
    if differ or any(group.differs for group in of.groups):
        return ""
    everybody = _capital(_ranks(both, both)) if (both := len(of.ranks.ranks)) > 1 else "The one rank"
    keep = "keep their" if both > 1 else "keeps its"
    same = f"Same layout: nothing moves. {everybody} {keep} lane, part of a row and weights."
    a, b = of.a.layout.rank_order, of.b.layout.rank_order
    if a != b:
        same += f" The rank orders {a} and {b} number the ranks alike with these sizes."
    return same


def _same_sizes(of: Comparison) -> str:
    a, b = of.a.layout.rank_order, of.b.layout.rank_order
    if of.sizes or a == b or of.a.layout.rank_offset != of.b.layout.rank_offset:
        return ""
    return f"The sizes are the same, and the ranks are numbered in another order ({a} in A, {b} in B)."


def _data(of: Comparison) -> str:
    num_other, both = int((of.other_rows | of.other_tokens).sum()), len(of.ranks.ranks)
    if not num_other:
        lanes, cuts = of.b.layout.batch_parallel_size, of.b.layout.runtime_context_parallel_size
        rows = "no row is cut" if cuts == 1 else f"each row is cut over {cuts} ranks"
        what = "changes lane or takes another part of a row" if _batch(of) else "trains on other data"
        return f"No rank {what}: there {_are(lanes)} {_count(lanes, 'lane')} and {rows}, in both."
    verb = "trains" if num_other == 1 else "train"
    reasons = " and ".join(reason for reason in (_other_lanes(of), _other_cuts(of)) if reason).rstrip(",")
    return f"{_capital(_ranks(num_other, both))} {verb} on other data: {reasons}."


def _other_lanes(of: Comparison) -> str:
    a, b = of.a.layout.batch_parallel_size, of.b.layout.batch_parallel_size
    if a == b:
        number = int(of.other_rows.sum())
        return f"{number} {'changes' if number == 1 else 'change'} lane" if number else ""
    rows_a, rows_b = of.rows_per_lane
    rows = (
        "" if rows_a is None or rows_b is None else f", of {_count(rows_b, 'row')} a step instead of {rows_a}"
    )
    return f"B has {_count(b, 'lane')} instead of {a}{rows},"


def _other_cuts(of: Comparison) -> str:
    a, b = of.a.layout.runtime_context_parallel_size, of.b.layout.runtime_context_parallel_size
    if a == b:
        number = int(of.other_tokens.sum())
        return f"{number} {'takes' if number == 1 else 'take'} another part of a row" if number else ""
    if a == 1:
        return f"B cuts each row over {b} ranks, A cuts none"
    return (
        f"each row is cut over {b} ranks instead of {a}"
        if b > 1
        else f"rows are cut over {a} ranks in A only"
    )


def _weights(of: Comparison) -> str:
    a, b, both = of.a.layout, of.b.layout, len(of.ranks.ranks)
    num_other = int(of.other_shard.sum())
    part_a, part_b = _part(of.a), _part(of.b)
    if not num_other:
        what = "all weights" if part_b == "all" else f"{part_b} of the weights"
        return f"No rank holds another weight shard: each stores {what} in both."
    verb = "holds" if num_other == 1 else "hold"
    start = f"{_capital(_ranks(num_other, both))} {verb} other weights"
    if part_a != part_b:
        return f"{start}: {part_b} of them each instead of {part_a}."
    cut_a, cut_b = (
        (layout.tensor_model_parallel_size, layout.gtp_remat_size, layout.pipeline_model_parallel_size)
        for layout in (a, b)
    )
    if cut_a == cut_b:
        return f"{start}, as many as before ({part_b} of them)."
    cuts = f"{_cut(cut_b)} instead of {_cut(cut_a)} (TP x GTP_remat x PP)"
    return f"{start}: {part_b} of them as before, cut {cuts}."


def _cut(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _part(job: Job) -> str:
    layout = job.layout
    number = layout.tensor_parallel_num_weight_shards * layout.pipeline_model_parallel_size
    return f"1/{number}" if number > 1 else "all"


def _replicas(of: Comparison) -> str:
    changing = of.ranks.counts["replica"]
    if of.other_shard.any() or not changing:
        return ""
    verb = "belongs" if changing == 1 else "belong"
    return f"{_capital(_ranks(changing, len(of.ranks.ranks)))} {verb} to another copy of the weights."


def _sequence_parallel(of: Comparison) -> str:
    a, b = of.a.layout, of.b.layout
    if (
        a.sequence_parallel == b.sequence_parallel
        or a.tensor_model_parallel_size != b.tensor_model_parallel_size
    ):
        return ""
    having = "A" if a.sequence_parallel else "B"
    what = "there each TP rank has its part of the tokens in norms and residuals"
    return f"Sequence parallelism is on in {having} only: {what}."


def _batch(of: Comparison) -> str:
    a, b, parts = of.a.batch, of.b.batch, []
    if a is not None and b is not None:
        if a.global_batch_size != b.global_batch_size:
            parts.append(f"a step has {_count(b.global_batch_size, 'row')} instead of {a.global_batch_size}")
        if a.micro_batch_size != b.micro_batch_size:
            parts.append(
                f"a microbatch has {_count(b.micro_batch_size, 'row')} a lane instead of {a.micro_batch_size}"
            )
    old, new = of.a.sequence_length, of.b.sequence_length
    if old is not None and new is not None and old != new:
        parts.append(f"a row has {new} tokens instead of {old}")
    return f"The batch differs: {', '.join(parts)}." if parts else ""


def _memory(of: Comparison) -> str:
    a, b = of.parameter_bytes
    if a is None or b is None:
        return ""
    if a == b:
        return f"Stored parameters take {bytes_text(b)} a rank in both."
    return f"Stored parameters take {bytes_text(b)} a rank instead of {bytes_text(a)}."


def _talk(of: Comparison) -> str:
    changed = [group.kind for group in of.groups if _changes_for_both(of, (*group.disappear, *group.appear))]
    moved = of.ranks.counts["domain"]
    verb = "stands" if moved == 1 else "stand"
    domains = (
        f" {_capital(_ranks(moved, len(of.ranks.ranks)))} {verb} in another NVLink domain." if moved else ""
    )
    if not changed:
        return f"Every rank talks to the same ranks.{domains}{_sent(of)}"
    kept = [group.kind for group in of.groups if group.kind not in changed]
    stay = f"; those of {_listed(kept)} stay" if kept else ""
    return f"The groups of {_listed(changed)} have other ranks{stay}.{domains}{_sent(of)}"


def _changes_for_both(of: Comparison, groups: tuple[tuple[int, ...], ...]) -> bool:
    """Whether one of these groups has a rank that is in both jobs."""
    first, last = of.ranks.ranks[0], of.ranks.ranks[-1]
    return any(first <= rank <= last for group in groups for rank in group)


def _sent(of: Comparison) -> str:
    """Bytes that a rank sends in a step over all groups, where they are known."""
    links = [link for link in of.links if link.level == "domain"]
    a = [link.rank_bytes_a for link in links if link.rank_bytes_a is not None]
    b = [link.rank_bytes_b for link in links if link.rank_bytes_b is not None]
    if not links or len(a) < len(links) or len(b) < len(links):
        return ""
    if sum(a) == sum(b):
        return f" A rank sends up to {bytes_text(sum(b))} a step in both."
    return f" A rank sends up to {bytes_text(sum(b))} a step instead of {bytes_text(sum(a))}."


def _links_differ(of: Comparison) -> bool:
    return any(link.differs or link.differs_inside for link in of.links)


def _links(of: Comparison) -> str:
    """Which kinds of groups leave domains in one job and not, or not as often, in the other."""
    links = [link for link in of.links if link.level == "domain"]
    moved = [link for link in links if (link.crossing_a > 0) != (link.crossing_b > 0)]
    more = [link for link in links if link not in moved and link.differs]
    if not any(link.crossing_a or link.crossing_b for link in links):
        return _unknown(of).strip() or "No group leaves an NVLink domain in either."
    if not moved and not more:
        same = "number of groups of each kind" if _talk_changes(of) else "groups"
        return (
            f"The same {same} leave{'s' if _talk_changes(of) else ''} NVLink domains in both.{_unknown(of)}"
        )
    texts = [_link(link) for link in sorted([*moved, *more], key=_weight)[:MAX_KINDS]]
    others = len(moved) + len(more) - len(texts)
    rest = f"; and so for {_count(others, 'other kind')} of group" if others else ""
    return f"What leaves NVLink domains changes: {'; '.join(texts)}{rest}.{_unknown(of)}"


def _talk_changes(of: Comparison) -> bool:
    return bool(of.ranks.counts["domain"] or any(group.differs for group in of.groups))


def _link(link: LinkChange) -> str:
    text = (
        f"{link.crossing_b} of {link.num_b} {link.group} groups in B, {link.crossing_a} of {link.num_a} in A"
        if link.num_a and link.num_b
        else f"{link.crossing_b} of {link.num_b} {link.group} groups in B, which A does not have"
        if link.num_b
        else f"{link.crossing_a} of {link.num_a} {link.group} groups in A, which B does not have"
    )
    if link.link_bytes_a is None or link.link_bytes_b is None:
        return text
    b, a = bytes_text(link.link_bytes_b), bytes_text(link.link_bytes_a)
    same = f"up to {b} of a step leave a domain in both"
    return f"{text} ({same if a == b else f'up to {b} of a step leave a domain, instead of {a}'})"


def _weight(link: LinkChange) -> int:
    return -max(link.link_bytes_a or 0, link.link_bytes_b or 0)


def _unknown(of: Comparison) -> str:
    names = [name for name, job in (("A", of.a), ("B", of.b)) if (job.topology.domains < 0).any()]
    return f" The domain of some ranks is not known in {' and '.join(names)}." if names else ""


def _reshape(of: Comparison) -> str:
    a, b = of.reshape_wrong
    if not a and not b:
        return ""
    start = "A plain reshape of the ranks to (PP, -1, runtime CP, TP)"
    if a and b:
        counts = f"{a} ranks" if a == b else f"{a} ranks in A and {b} in B"
        return f"{start} puts {counts} in the wrong lane{', in both' * (a == b)}."
    wrong, right, number = ("A", "B", a) if a else ("B", "A", b)
    return f"{start} gives the lanes in {right}, but puts {number} ranks in the wrong lane in {wrong}."


def _ranks(number: int, both: int) -> str:
    """ "all 8 ranks", "2 of 8 ranks", "the one rank"."""
    if number == both:
        return f"all {both} ranks" if both > 1 else "the one rank"
    return f"{number} of {both} ranks"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'s' * (number != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
