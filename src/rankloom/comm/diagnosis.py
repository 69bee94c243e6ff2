"""Who holds the others up: a report made of what each rank says it is doing. Plain data in, text out.

Rank A waits for rank B when A is blocked in collective number n of a group and B has launched fewer than n of
that group. Following these edges ends at the ranks that wait for nobody (the cause) or goes in a circle (a
deadlock).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RankState", "diagnose", "members"]

_TOKEN_GROUPS = frozenset(
    {"context", "batch", "lane"}
)  # every other group's name belongs to the weights view
_MAX_LINES = 16


@dataclass(frozen=True)
class RankState:
    """Last snapshot of a rank (None: never heard from); ``silent_s`` is None when it answered just now."""

    rank: int
    snapshot: Mapping[str, Any] | None
    silent_s: float | None = None

    @property
    def waiting(self) -> Mapping[str, Any] | None:
        """What it waits for; a silent rank may be long past what its last snapshot says."""
        return self.snapshot["waiting"] if self.snapshot and self.silent_s is None else None

    def num_launched(self, group: str) -> int:
        return self.snapshot["launched"].get(group, (0, ""))[0] if self.snapshot else 0

    def describe(self) -> str:
        if self.snapshot is None:
            return "was never heard from"
        doing = f"{self.snapshot['phase']}, at {self.snapshot['frame']}"
        if self.silent_s is not None:
            return f"shows no sign of life for {self.silent_s:.0f} s; last seen in {doing}"
        return f"did not arrive; it is in {doing}"


@dataclass
class _Findings:
    blockers: dict[int, tuple[int, ...]] = field(default_factory=dict)  # waiting rank -> ranks it waits for
    causes: list[int] = field(default_factory=list)


def members(layout: Any, rank: int, group: str) -> tuple[int, ...]:
    """The ranks of the group with that name that contains ``rank``; "tokens.tp" picks the view by hand."""
    view, _, name = group.rpartition(".")
    if not view:
        view = "tokens" if name in _TOKEN_GROUPS else "weights"
    return tuple(int(r) for r in getattr(layout, view).group_of(rank, name))


def diagnose(states: Sequence[RankState], layout: Any, *, timeout_s: float) -> str:
    """Lines for the user: the ranks that hold the run up, with coordinates, then what all others wait for."""
    by_rank = {state.rank: state for state in states}
    findings = _find(by_rank, layout)
    lines = [f"the ranks wait for each other for more than comm.timeout_s = {timeout_s:g} s"]
    lines += [f"rank {r} ({layout.coords(r).describe()}) {by_rank[r].describe()}" for r in findings.causes]
    if not findings.causes:
        lines.append(_without_a_cause(findings, by_rank))
    lines += _disagreements(by_rank, layout)
    lines += _waits(findings, by_rank, layout)
    return "\n".join(lines)


def _find(by_rank: Mapping[int, RankState], layout: Any) -> _Findings:
    findings = _Findings()
    for rank, state in by_rank.items():
        if state.waiting is not None:
            findings.blockers[rank] = _blockers(state, by_rank, layout)
    awaited = {rank for ranks in findings.blockers.values() for rank in ranks}
    findings.causes = sorted(rank for rank in awaited if by_rank[rank].waiting is None)
    return findings


def _blockers(state: RankState, by_rank: Mapping[int, RankState], layout: Any) -> tuple[int, ...]:
    """Members that have not launched it; if all have, those that fell silent while it moves data."""
    assert state.waiting is not None
    group, seq = state.waiting["group"], state.waiting["seq"]
    others = [by_rank[r] for r in members(layout, state.rank, group) if r != state.rank and r in by_rank]
    late = tuple(other.rank for other in others if other.num_launched(group) < seq)
    return late or tuple(other.rank for other in others if other.silent_s is not None)


def _without_a_cause(findings: _Findings, by_rank: Mapping[int, RankState]) -> str:
    if any(findings.blockers.values()):
        return "deadlock: the ranks wait in different groups, or for different collectives, for each other"
    return "every rank has arrived, but the data does not come (a broken connection between two of them?)"


def _disagreements(by_rank: Mapping[int, RankState], layout: Any) -> list[str]:
    """Ranks of a group whose last launches have one number but are different: a wrong launch order."""
    lines = []
    for state in by_rank.values():
        for group, (seq, what) in (state.snapshot or {"launched": {}})["launched"].items():
            others = [
                by_rank[r] for r in members(layout, state.rank, group) if r > state.rank and r in by_rank
            ]
            for other in others:
                theirs = (other.snapshot or {"launched": {}})["launched"].get(group)
                if theirs and theirs[0] == seq and theirs[1] != what:
                    ours = f"number {seq} of {group} is {what} on rank {state.rank}"
                    lines.append(f"{ours} but {theirs[1]} on rank {other.rank}")
    return _shortened(lines)


def _waits(findings: _Findings, by_rank: Mapping[int, RankState], layout: Any) -> list[str]:
    """One line per wait that is the same on several ranks."""
    same: dict[tuple[Any, ...], list[int]] = {}
    for rank, missing in sorted(findings.blockers.items()):
        snapshot = by_rank[rank].snapshot
        assert snapshot is not None
        wait = snapshot["waiting"]
        group = (wait["group"], members(layout, rank, wait["group"]))
        key = (*group, wait["seq"], wait["what"], snapshot["phase"], snapshot["frame"], missing)
        same.setdefault(key, []).append(rank)
    lines = []
    for (group, ranks, seq, what, phase, frame, missing), waiting in same.items():
        absent = f"; missing: {_name(missing)}" if missing else "; all of them arrived"
        place = f"number {seq} of {group} {list(ranks)}: {what}"
        where = f"({layout.coords(waiting[0]).describe()}) " if len(waiting) == 1 else ""
        verb = "waits" if len(waiting) == 1 else "wait"
        lines.append(f"{_name(waiting)} {where}{verb} for {place} in {phase}, at {frame}{absent}")
    return _shortened(lines)


def _name(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    shown = ", ".join(map(str, ranks[:32])) + (f" and {len(ranks) - 32} more" if len(ranks) > 32 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _shortened(lines: list[str]) -> list[str]:
    rest = len(lines) - _MAX_LINES
    return lines if rest <= 0 else [*lines[:_MAX_LINES], f"... and {rest} more such lines"]
