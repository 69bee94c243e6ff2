"""From what Ray says of failed calls, and what ranks left, to the one failure that the user is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from rankloom.driver.actor import RankFailed
from rankloom.driver.keeper import RankEnd
from rankloom.driver.places import PlacementMap, RankPlace
from rankloom.errors import RankloomError, RunError
from rankloom.layout.words import stretches_text
from rankloom.train.failures import FailureKind, FailureRecord, RankExit, first_cause, to_error

__all__ = ["FailedCall", "RankLostError", "describe_failure", "own_record"]

_OUT_OF_MEMORY = ("OUT_OF_MEMORY", "running low on memory")
_PROCESS_ENDED = "its worker process has died"
_ENDED = 1  # the exit code of a process of which nobody knows it


class RankLostError(RunError):
    """A rank's process ended, or hung, or its node was lost: the same run may succeed in a new gang.

    ``rank`` is the one that is reported; ``lost_nodes`` are ids of nodes that left the cluster.
    """

    rank: int = -1
    lost_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FailedCall:
    """A call of one rank that failed, as Ray tells of it; GetTimeoutError: it did not come back in time."""

    rank: int
    method: str
    error: RayError


def own_record(failed: FailedCall) -> FailureRecord | None:
    """What the rank itself said, or whoever made its arguments; None where its process ended without a
    word."""
    error = failed.error
    if not isinstance(error, RayTaskError):
        return None
    if isinstance(error.cause, RankFailed):
        return error.cause.record
    cause = error.cause if isinstance(error.cause, RankloomError) else error
    return FailureRecord.of(cause, rank=failed.rank, phase="", place="in Ray")


def describe_failure(
    failed: Sequence[FailedCall],
    ends: Mapping[int, RankEnd],
    lost_nodes: Sequence[str],
    places: PlacementMap,
) -> RankloomError:
    """The error for the user. ``failed``: in the order they were seen; ``ends``: what ranks left, of those
    whose nodes answered; ``lost_nodes``: ids of nodes that are gone.

    A rank's own error outranks the errors of ranks that only saw another end. Gives the UserError or
    RunError of that rank, with rank, coordinates, method, phase, node, reason and its last lines; a
    RankLostError where a process, a node or the ranks' progress was lost.
    """
    methods = {call.rank: call.method for call in failed}
    exits = [_exit_of(call, ends, lost_nodes, places) for call in failed]
    exits += [_said_so(end) for rank, end in ends.items() if end.record is not None and rank not in methods]
    cause = first_cause(exits)
    place, method = places.of(cause.rank), methods.get(cause.rank, "")
    phase = ", ".join(filter(None, [method, cause.phase, f"on node {place.node.name}"]))
    error = to_error(replace(cause, phase=phase), places.layout)
    if not _is_loss(cause):
        return error
    lost = RankLostError(str(error))
    lost.__cause__ = error.__cause__
    lost.rank, lost.lost_nodes = cause.rank, tuple(lost_nodes)
    return lost


def _exit_of(
    failed: FailedCall, ends: Mapping[int, RankEnd], lost_nodes: Sequence[str], places: PlacementMap
) -> RankExit:
    """An argument may be another rank's result: then its record tells of that rank."""
    record = own_record(failed)
    rank = record.rank if record is not None else failed.rank
    end = ends.get(rank)
    if end is not None and end.record is not None:
        record = end.record
    elif record is None:
        record = _lost(failed, places.of(rank), lost_nodes, places)
    phase = end.phase if end is not None else record.phase
    output, log = (end.output, end.log) if end is not None else ("", "")
    return RankExit(rank, _ENDED, phase=phase, record=record, output=output, log=log)


def _said_so(end: RankEnd) -> RankExit:
    """A rank that left a record and has not been seen to fail: such as the one that writes the watchdog's."""
    return RankExit(end.rank, _ENDED, phase=end.phase, record=end.record, output=end.output, log=end.log)


def _lost(
    failed: FailedCall, place: RankPlace, lost_nodes: Sequence[str], places: PlacementMap
) -> FailureRecord:
    if place.node.node_id in lost_nodes:
        others = [p.rank for p in places.places if p.node.node_id == place.node.node_id]
        ranks = f"rank{'s' * (len(others) > 1)} {stretches_text(others)}"
        reason = f"its node was lost (it no longer answers), and with it {ranks}"
    elif isinstance(failed.error, GetTimeoutError):
        reason = str(failed.error)
    elif any(words in str(failed.error) for words in _OUT_OF_MEMORY):
        reason = "Ray ended its process because the node ran out of host memory"
    elif _PROCESS_ENDED in str(failed.error):
        reason = (
            "its process ended without a message: it was killed, or crashed, or the node ran out of host "
            "memory (the kernel's log, dmesg, tells)"
        )
    else:
        reason = f"Ray lost it: {_last_line(failed.error)}"
    return FailureRecord(failed.rank, FailureKind.OWN, "", reason)


def _last_line(error: RayError) -> str:
    """Where Ray says why, behind what it knows of the actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _is_loss(cause: RankExit) -> bool:
    """No traceback: it is not the program that failed; the watchdog writes none either."""
    record = cause.record
    assert record is not None
    return record.kind in (FailureKind.OWN, FailureKind.RUN) and not record.trace
