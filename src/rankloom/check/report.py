"""What `look_at` found, worst first, as an object and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

from pydantic import BaseModel

from rankloom.config.examine import Examined, Place
from rankloom.config.findings import SEVERITIES, Finding
from rankloom.errors import UserError
from rankloom.layout import DriverOutcome, Reach
from rankloom.plan.job import Job
from rankloom.plan.links import Crossing

__all__ = ["Report", "worst_first"]

EXIT_CODES = {"error": 2, "warning": 1}


@dataclass(frozen=True, eq=False)
class Report:
    """Findings, worst first, and the job as far as it could be made: None where it has no layout."""

    examined: Examined
    findings: tuple[Finding, ...]
    not_looked_at: tuple[str, ...]
    job: Job | None = None
    crossings: tuple[Crossing, ...] = ()
    outcome: DriverOutcome | None = None
    reaches: tuple[Reach, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each severity."""
        number = Counter(finding.severity for finding in self.findings)
        return {severity: number[severity] for severity in SEVERITIES}

    @property
    def exit_code(self) -> int:
        """0 clean, 1 warnings only, 2 errors."""
        return max((EXIT_CODES.get(finding.severity, 0) for finding in self.findings), default=0)

    def require_job(self) -> Job:
        """The job. Raises UserError where it has no layout, or its settings are not those that are meant: a
        line for everything wrong with settings and layout."""
        errors = [f for f in self.findings if f.severity == "error"]
        mistaken = [f.text for f in errors if f.topic in ("settings", "layout")]
        if self.job is not None and not mistaken:
            return self.job
        told = [f.text for f in self.findings if f.severity == "note" and f.topic == "layout"]
        raise UserError("\n".join([*(mistaken or [f.text for f in errors] or self.not_looked_at), *told]))

    def to_json(self) -> dict[str, object]:
        """JSON-ready: findings with their places, what was not looked at, sizes, crossings, driver, calls."""
        foreign = self.examined.foreign
        return {
            "program": self.examined.program,
            "origin": self.examined.origin,
            "exit_code": self.exit_code,
            "counts": self.counts,
            "findings": [self._finding(finding) for finding in self.findings],
            "not_looked_at": list(self.not_looked_at),
            "read": list(foreign.read) if foreign else [],
            "ignored": list(foreign.ignored) if foreign else [],
            "rank_order": self.job.layout.rank_order if self.job else None,
            "sizes": self.job.layout.sizes if self.job else None,
            "sources": dict(self.examined.sources),
            "crossings": [asdict(crossing) for crossing in self.crossings],
            "driver": _outcome_object(self.outcome) if self.outcome else None,
            "calls": [_reach_object(reach) for reach in self.reaches],
        }

    def _finding(self, finding: Finding) -> dict[str, object]:
        places = [_place_object(self.examined.place(key)) for key in finding.keys]
        return {
            "severity": finding.severity,
            "topic": finding.topic,
            "message": finding.message,
            "where": finding.where,
            "places": places,
        }


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors, then warnings, then notes; each once, otherwise in the order they were found."""
    once = {(finding.severity, finding.text): finding for finding in findings}
    return tuple(sorted(once.values(), key=lambda finding: SEVERITIES.index(finding.severity)))


def _place_object(place: Place) -> dict[str, object]:
    return {**asdict(place), "value": _plain(place.value)}


def _plain(value: object) -> object:
    """The value as JSON has it; what JSON has no word for (a number that is none, bytes) as a text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    is_json = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
    return value if is_json else str(value)


def _outcome_object(outcome: DriverOutcome) -> dict[str, object]:
    return {
        "spelling": outcome.driver.spelling,
        "axes": outcome.driver.sizes,
        "agrees": outcome.agrees,
        "num_lanes": outcome.num_lanes,
        "num_driver_lanes": outcome.num_driver_lanes,
        "lanes_are": list(outcome.lanes_are),
        "wrong_ranks": [
            {"rank": rank, "lane": right, "driver_lane": given}
            for rank, right, given in zip(
                outcome.wrong_ranks, outcome.right_lanes, outcome.driver_lanes, strict=True
            )
        ],
        "mistake": outcome.mistake,
        "right_axes": outcome.right_axes,
    }


def _reach_object(reach: Reach) -> dict[str, object]:
    return {
        "name": reach.call.name,
        "shard": list(reach.call.shard),
        "replicate": list(reach.call.replicate),
        "leader_only": list(reach.call.leader_only),
        "num_pieces": reach.num_pieces,
        "num_reached": len(reach.reached),
        "not_reached": list(reach.not_reached),
        "not_named": list(reach.not_named),
        "wrong_pieces": list(reach.wrong_pieces),
    }
