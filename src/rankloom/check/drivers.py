"""A driver's own idea of the ranks against the layout, its calls, and the reshape that is often wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankloom.config.findings import Finding
from rankloom.errors import UserError
from rankloom.layout import (
    PLAIN_RESHAPE,
    Call,
    Driver,
    DriverOutcome,
    GTPParallelLayout,
    Reach,
    compare_driver,
    reach,
)

__all__ = ["Drivers", "look_at_driver"]


@dataclass(frozen=True, eq=False)
class Drivers:
    """A driver with its calls, compared with a layout. What could not be read is among the findings."""

    findings: tuple[Finding, ...]
    driver: Driver | None = None
    outcome: DriverOutcome | None = None
    calls: tuple[Call, ...] = ()
    reaches: tuple[Reach, ...] = ()


def look_at_driver(layout: GTPParallelLayout, *, spelling: str | None, calls: Sequence[str]) -> Drivers:
    """A given driver that disagrees is an error, and so is a call that leaves ranks out.

    Without a driver the reshape trap is a note, and calls run over the layout's own axes.
    """
    findings: list[Finding] = []
    driver, outcome = None, None
    if spelling is None:
        findings += _trap(layout)
    else:
        try:
            driver = Driver.parse(spelling, layout)
        except UserError as error:
            return Drivers((Finding("error", "driver", str(error), where="--driver"),))
        outcome = compare_driver(driver, layout)
        findings.append(_outcome_finding(outcome))
    read: list[Call] = []
    reaches: list[Reach] = []
    for text in calls:
        try:
            call = Call.parse(text)
            if call.name in (other.name for other in read):
                raise UserError(f"call {call.name} is given twice; give each call a name of its own")
            found = reach(call, driver or Driver.of_layout(layout), layout)
        except UserError as error:
            findings.append(Finding("error", "calls", str(error), where="--call"))
            continue
        read.append(call)
        reaches.append(found)
        wrong = found.partial or found.wrong_pieces
        findings.append(Finding("error" if wrong else "note", "calls", found.describe()))
    return Drivers(tuple(findings), driver, outcome, tuple(read), tuple(reaches))


def _outcome_finding(outcome: DriverOutcome) -> Finding:
    if outcome.agrees:
        return Finding("note", "driver", outcome.describe())
    return Finding("error", "driver", outcome.describe())


def _trap(layout: GTPParallelLayout) -> list[Finding]:
    """What a plain reshape would get wrong, with the runtime CP and with the configured one."""
    findings = []
    for spelling in (PLAIN_RESHAPE, "pp,-1,cp,tp"):
        try:
            outcome = compare_driver(Driver.parse(spelling, layout), layout)
        except UserError:
            continue  # a reshape that fails misleads nobody
        if not outcome.agrees:
            rows = zip(outcome.wrong_ranks, outcome.driver_lanes, outcome.right_lanes, strict=True)
            rank, given, right = next(rows)
            message = (
                f"a driver that reshapes the ranks to ({spelling.replace(',', ', ')}) would put "
                f"{len(outcome.wrong_ranks)} of {layout.world_size} of them in the wrong lane, rank {rank} "
                f"in lane {given} instead of {right}; --driver {spelling} shows why, and the right axes"
            )
            findings.append(Finding("note", "driver", message))
            break
    return findings
