"""Ends a run whose ranks wait for each other too long, with a report that names the ones that did not arrive.

A thread in every rank looks at its own rank's current wait. The first to see one longer than the timeout
raises an alarm in the store; the threads of all ranks answer with what their rank is doing. Who does not
answer is stopped or gone: of those the last heartbeat is known. The rank that raised the alarm writes the
report, and all processes end. A rank that hangs in Python still answers, since the thread is its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rankloom.comm.activity import Activity
from rankloom.comm.diagnosis import RankState, diagnose

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["Watchdog"]

_ALARM, _REPORTER, _VERDICT, _LEAVING = (
    f"watchdog/{key}" for key in ("alarm", "reporter", "verdict", "leaving")
)
_VERDICT_PATIENCE_S = 15.0
_LONGEST_LOOK_S = 5.0  # at the store, that counts as waiting; more means that this process was suspended
_LEAVE_PATIENCE_S = 2.0


class Watchdog:
    """Watch one rank's waits from a thread of its own.

    ``connect`` makes the store, from the watchdog's thread: a client that no other thread uses (a second
    TCPStore client, or a FileStore on a file of its own), since a blocking call of the training thread would
    silence it. ``layout`` gives groups and coordinates. ``on_failure`` gets the report, on the one rank that
    writes it; then every rank's process ends with ``end(1)``. Waiting is counted in ticks of the thread, so
    that suspending the whole run (Ctrl-Z) is no alarm.
    """

    def __init__(
        self,
        activity: Activity,
        connect: Callable[[], Store],
        layout: Any,
        *,
        rank: int,
        timeout_s: float,
        on_failure: Callable[[str], None],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._activity, self._connect, self._layout = activity, connect, layout
        self._rank, self._timeout_s = rank, timeout_s
        self._on_failure, self._end = on_failure, end
        self._tick_s = min(1.0, max(0.05, timeout_s / 20))
        self._heartbeat_s = min(60.0, timeout_s / 10)
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._store_error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._watch, name="collective-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the rank must not wait in a collective after it."""
        self._stopped.set()
        self._thread.join(timeout=5)  # it may still be trying to connect

    def _watch(self) -> None:
        seen: object = None
        waited_s, looked_s, next_heartbeat, before = 0.0, 0.0, 0.0, time.monotonic()
        while not self._stopped.wait(self._tick_s):
            now = time.monotonic()
            wait = self._activity.wait
            passed_s = min(now - before, 2 * self._tick_s + min(looked_s, _LONGEST_LOOK_S))
            waited_s = waited_s + passed_s if wait and wait is seen else 0.0
            seen, before = wait, now
            if waited_s >= self._timeout_s or self._alarm_raised():
                return self._finish()
            if now >= next_heartbeat:
                self._publish("heartbeat")
                next_heartbeat = now + self._heartbeat_s
            looked_s = time.monotonic() - now  # long where there is no store that answers
        self._activity.phase += " (over)"
        self._publish("heartbeat")
        return None

    def _alarm_raised(self) -> bool:
        return bool(self._try(lambda store: store.check([_ALARM])))

    def _publish(self, kind: str) -> None:
        text = json.dumps(self._activity.snapshot())
        self._try(lambda store: store.set(f"watchdog/{kind}/{self._rank}", text))

    def _finish(self) -> None:
        first = self._try(lambda store: store.add(_REPORTER, 1)) == 1
        self._try(lambda store: store.set(_ALARM, "1"))
        self._publish("answer")
        if first:
            states = self._gather_answers()
            self._on_failure(diagnose(states, self._layout, timeout_s=self._timeout_s))
            num_alive = sum(state.silent_s is None for state in states)
            self._try(lambda store: store.set(_VERDICT, str(num_alive)))
        elif not self._until(lambda store: store.check([_VERDICT]), _VERDICT_PATIENCE_S):
            self._on_failure(self._lonely_report())
        self._leave_together()
        self._end(1)

    def _leave_together(self) -> None:
        """The first to go may take the store with it, and the others could not read the verdict."""
        self._try(lambda store: store.add(_LEAVING, 1))
        self._until(lambda store: store.add(_LEAVING, 0) >= int(store.get(_VERDICT)), _LEAVE_PATIENCE_S)

    def _gather_answers(self) -> list[RankState]:
        """Every living thread answers within a tick; the rest of the patience is for busy machines."""
        silent = {int(rank) for rank in self._layout.ranks}
        deadline = time.monotonic() + min(10.0, max(2.0, self._timeout_s))
        answers: dict[int, dict[str, Any] | None] = {}
        while silent and time.monotonic() < deadline:
            for rank in sorted(silent):
                if (answer := self._read("answer", rank)) is not None:
                    answers[rank] = answer
                    silent.discard(rank)
            time.sleep(self._tick_s / 5)
        return [RankState(rank, answers[rank]) for rank in answers] + [self._silent(rank) for rank in silent]

    def _silent(self, rank: int) -> RankState:
        heartbeat = self._read("heartbeat", rank)
        return RankState(rank, heartbeat, time.time() - heartbeat["time"] if heartbeat else self._timeout_s)

    def _read(self, kind: str, rank: int) -> dict[str, Any] | None:
        key = f"watchdog/{kind}/{rank}"
        found = self._try(lambda store: store.get(key) if store.check([key]) else None)
        return json.loads(found) if found else None

    def _until(self, condition: Callable[[Store], bool], patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and self._store_error is None:
            if self._try(condition):
                return True
            time.sleep(self._tick_s / 5)
        return False

    def _lonely_report(self) -> str:
        state = RankState(self._rank, self._activity.snapshot())
        if self._store is None:
            return self._nobody_there(state)
        cause = f": {self._store_error}" if self._store_error else ""
        alone = diagnose([state], self._layout, timeout_s=self._timeout_s)
        return f"no report came from the other ranks{cause}\n{alone}"

    def _nobody_there(self, state: RankState) -> str:
        """The store is the first rank's, or torchrun's: where it never answered, nothing is known."""
        num_others = len(self._layout.ranks) - 1
        waiting = state.waiting or {"what": "nothing"}
        return (
            f"rank {self._rank} ({self._layout.coords(self._rank).describe()}) waits for the others for more "
            f"than comm.timeout_s = {self._timeout_s:g} s: {waiting['what']}\n"
            f"1 of {num_others + 1} ranks is known to have arrived; the store through which they meet, which "
            f"rank 0 or torchrun hosts, never answered: {self._store_error}\n"
            "start the other ranks, with the same MASTER_ADDR and MASTER_PORT"
        )

    def _try(self, call: Callable[[Store], Any]) -> Any:
        """A store that is not there yet, or gone, must not end the thread; its error is reported."""
        try:
            self._store = self._store or self._connect()
            result = call(self._store)
        except RuntimeError as error:  # torch's store errors all derive from it
            self._store_error = error
            return None
        self._store_error = None
        return result
